//! The chat template of a tokenizer: a Jinja template that renders messages as the text which the model was trained on, as
//! `apply_chat_template` of transformers does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, escape_formatter};
use serde_json::{Map, Value as Json};

use super::tokenizer_config::TokenizerConfig;
use crate::sys::regular_file::{self, has_dir_entry};
use crate::sys::terminal::escape_controls;

/// The file of a template beside a tokenizer, which precedes the field of `tokenizer_config.json`.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The name of the one template in its environment, which error messages contain.
const NAME: &str = "template";
/// The name of the template that is used if a tokenizer has several.
const DEFAULT: &str = "default";
/// Maximum instructions of a rendering; templates of rerankers take some tens.
const FUEL: u64 = 1_000_000;

/// What of a template reads the content of a message as a list of parts, by which sentence-transformers infers that it is one.
const PART_PATTERNS: [&str; 6] =
    ["content[0]", ".type", "'type'", "\"type\"", "item.type", "message.content["];

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who says it: `system`, `query`, `document` …
    pub role: &'static str,
    /// What it says.
    pub content: &'a str,
}

/// The chat template of a tokenizer.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file of the template.
    file: PathBuf,
    reads_parts: bool,
    /// The variables of every rendering, by name.
    variables: BTreeMap<String, Value>,
}

impl ChatTemplate {
    /// Reads the template of the tokenizer in `tokenizer_file`: `chat_template.jinja` beside it, else `chat_template` of
    /// `tokenizer_config.json`; `None` if it has neither. `variables` are those of its renderings beside the messages and the special
    /// tokens.
    ///
    /// # Errors
    /// If a file cannot be read, or the template does not parse.
    pub fn read(tokenizer_file: &Path, variables: &Map<String, Json>) -> Result<Option<Self>> {
        let config = TokenizerConfig::read(tokenizer_file)?;
        let own = tokenizer_file.with_file_name(CHAT_TEMPLATE);
        let (file, source) = if has_dir_entry(&own) {
            let text = regular_file::read(&own, regular_file::MAX_CONFIG_BYTES);
            match text.map(String::from_utf8) {
                Ok(Ok(source)) => (own, source),
                Ok(Err(_)) => bail!("{} is not UTF-8; download the file again", own.display()),
                Err(error) => bail!("cannot read {} ({error}); download the file again", own.display()),
            }
        } else {
            match config.field("chat_template") {
                None | Some(Json::Null) => return Ok(None),
                Some(field) => match source(field) {
                    Some(source) => (config.path().to_owned(), source.to_owned()),
                    None => bail!(
                        "{}: \"chat_template\" is neither a template nor a list of templates with one named {DEFAULT:?}; fix the file",
                        config.path().display()
                    ),
                },
            }
        };
        let mut all: BTreeMap<String, Value> = config
            .named_special_tokens()
            .map(|(name, token)| (name.to_owned(), Value::from(token)))
            .collect();
        all.extend(["tools", "documents"].map(|name| (name.to_owned(), Value::from(()))));
        all.insert("add_generation_prompt".into(), Value::from(false));
        all.extend(variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        Ok(Some(Self::new(file, source, all)?))
    }

    fn new(file: PathBuf, source: String, variables: BTreeMap<String, Value>) -> Result<Self> {
        let reads_parts = PART_PATTERNS.iter().any(|pattern| source.contains(pattern));
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| escape_formatter(out, state, &as_in_python(value)));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // As transformers sets them.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let parsed = syntax.and_then(|syntax| {
            environment.set_syntax(syntax);
            environment.add_template_owned(NAME, source)
        });
        match parsed {
            Ok(()) => Ok(ChatTemplate { environment, file, reads_parts, variables }),
            Err(error) => {
                bail!("{}: the chat template does not parse ({}); fix it", file.display(), one_line(&error))
            }
        }
    }

    /// The file of the template.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether the template seems to read the content of a message as a list of parts, each with its type.
    pub fn reads_parts(&self) -> bool {
        self.reads_parts
    }

    /// The text of a conversation. `has_parts`: the content of each message is a list with one part.
    ///
    /// # Errors
    /// Why the template fails, in one line.
    pub fn render(&self, messages: &[Message], has_parts: bool) -> Result<String, String> {
        let message = |message: &Message| {
            let content = match has_parts {
                true => serde_json::json!([{"type": "text", "text": message.content}]),
                false => message.content.into(),
            };
            serde_json::json!({"role": message.role, "content": content})
        };
        let messages: Vec<Json> = messages.iter().map(message).collect();
        let mut variables = self.variables.clone();
        variables.insert("messages".into(), Value::from(Serde(messages)));
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from_pairs(variables)));
        rendered.map_err(|error| one_line(&error))
    }
}

/// The template of the field `chat_template`: a string, or the default one of a list of templates with names.
fn source(field: &Json) -> Option<&str> {
    let Json::Array(named) = field else { return field.as_str() };
    named
        .iter()
        .find(|entry| entry.get("name").is_some_and(|name| name == DEFAULT))?
        .get("template")?
        .as_str()
}

/// A value that Jinja prints in another way than minijinja, as it prints it.
fn as_in_python(value: &Value) -> Value {
    match (value.is_none(), bool::try_from(value.clone())) {
        (true, _) => Value::from("None"),
        (false, Ok(flag)) if value.kind() == ValueKind::Bool => {
            Value::from(if flag { "True" } else { "False" })
        }
        _ => value.clone(),
    }
}

/// An error of the library as a part of a sentence; it may quote the template.
fn one_line(error: &Error) -> String {
    escape_controls(&error.to_string().replace('\n', " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::new("chat_template.jinja".into(), source.into(), BTreeMap::new())
    }

    fn render(source: &str) -> Result<String, String> {
        let messages = [
            Message { role: "query", content: " a lamp " },
            Message { role: "document", content: "a light\n" },
        ];
        template(source).unwrap().render(&messages, false)
    }

    #[test]
    fn templates_render_as_jinja_does_for_transformers() {
        for (source, expected) in [
            // A line of a block leaves nothing; the newline at the end of a template is not of its text.
            ("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\n", "  query\n  document\n"),
            (
                "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}",
                " a lamp ",
            ),
            ("{{ messages | selectattr('role', 'eq', 'system') | first | default('none') }}", "none"),
            (
                "{{ messages[0].content.strip().upper() }}{{ messages[1]['content'].split('t')[0] }}",
                "A LAMPa ligh",
            ),
            ("{{ none }} {{ true }} {{ [true] | first }} {{ undefined_name }}", "None True True "),
            (
                "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
                "query",
            ),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            // Nothing is escaped.
            ("{{ '<|im_start|>&' }}", "<|im_start|>&"),
        ] {
            assert_eq!(render(source).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn a_template_that_fails_is_one_line() {
        let error = render("{{ raise_exception('no\n\x1b[31msystem') }}").unwrap_err();
        assert!(error.contains("no \\u{1b}[31msystem") && !error.contains(['\n', '\x1b']), "{error}");
        assert!(render("{{ messages[5].content.strip() }}").unwrap_err().contains("undefined"));
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(render(endless).unwrap_err().contains("fuel"), "{endless}");
        let error = template("{% if %}").err().unwrap().to_string();
        assert!(error.starts_with("chat_template.jinja: the chat template does not parse ("), "{error}");
    }
}
