//! The chat template of a tokenizer: a Jinja template that renders messages as the text which the model was
//! trained on, as `apply_chat_template` of transformers does.
//!
//! # Untrusted templates
//!
//! A template is a program. Its source is at most [`MAX_BYTES`] long, and each expression [`MAX_EXPRESSION`]:
//! the time to parse a chain of operators grows with its square. It is parsed, and each rendering runs, on a
//! thread with [`STACK_BYTES`] of stack: the library recurses for each operator of a chain, each `elif`, and
//! each level of a nested value. [`FUEL`] bounds the instructions and the bytes that they write, but not what
//! is done with values whose parts are shared, as in a list that is put into a list twice, again and again:
//! [`MAX_TIME`] and [`MAX_MEMORY`] bound that. A thread cannot be ended, so the template that exceeds them is
//! not rendered again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use super::tokenizer_config::TokenizerConfig;
use crate::sys::catch_panic::catch_panic;
use crate::sys::memory::current_memory;
use crate::sys::regular_file::{self, has_dir_entry};
use crate::sys::terminal::escape_controls;
use crate::sys::threads::spawn_with_stack;

/// The file of a template beside a tokenizer, which precedes the field of `tokenizer_config.json`.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The name of the one template in its environment, which error messages contain.
const NAME: &str = "template";
/// The name of the template that is used if a tokenizer has several.
const DEFAULT: &str = "default";
/// Maximum bytes of the source of a template. Those of chat models with tools have up to 40 kB.
const MAX_BYTES: usize = 128 << 10;
/// Maximum bytes of an expression or a statement, without strings and white space.
const MAX_EXPRESSION: usize = 4 << 10;
/// Maximum instructions of a rendering, each of which may write 64 bytes; templates of rerankers take some
/// tens.
const FUEL: u64 = 1_000_000;
/// Maximum bytes that one call of a method writes.
const MAX_WRITTEN: usize = 64 << 20;
/// Address space for the stack of the thread of a template. Only what it uses is memory.
const STACK_BYTES: usize = 256 << 20;
/// Maximum time to parse a template, or to render it.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Maximum memory that the process may take more after [`PATIENCE`].
const MAX_MEMORY: u64 = 1 << 30;
/// Time after which the memory of the process is looked at, again and again. Others may take some, but a
/// rendering takes a millisecond.
const PATIENCE: Duration = Duration::from_millis(200);

/// What of a template reads the content of a message as a list of parts, by which sentence-transformers
/// infers that it is one.
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
    environment: Arc<Environment<'static>>,
    /// The file of the template.
    file: PathBuf,
    reads_parts: bool,
    /// The variables of every rendering, by name.
    variables: BTreeMap<String, Value>,
    /// Whether a rendering took too long. Its thread may still run.
    is_endless: AtomicBool,
}

impl ChatTemplate {
    /// Reads the template of the tokenizer in `tokenizer_file`: `chat_template.jinja` beside it, else
    /// `chat_template` of `tokenizer_config.json`; `None` if it has neither. `variables` are those of its
    /// renderings beside the messages and the special tokens.
    pub fn read(tokenizer_file: &Path, variables: &Map<String, Json>) -> Result<Option<Self>> {
        let config = TokenizerConfig::read(tokenizer_file)?;
        let own = tokenizer_file.with_file_name(CHAT_TEMPLATE);
        let (file, source) = if has_dir_entry(&own) {
            let text = regular_file::read_model_file(&own, regular_file::MAX_CONFIG_BYTES)?;
            match String::from_utf8(text) {
                Ok(source) => (own, source),
                Err(_) => bail!("{} is not UTF-8; download the file again", own.display()),
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
        let shown = file.display();
        if source.len() > MAX_BYTES {
            bail!(
                "{shown}: the chat template has {} bytes, and at most {MAX_BYTES} are read; use a shorter one",
                source.len()
            );
        }
        let longest = longest_expression(&source);
        if longest > MAX_EXPRESSION {
            bail!(
                "{shown}: the chat template has an expression of {longest} bytes beside its strings, and at most {MAX_EXPRESSION} are \
                 read; use a simpler one"
            );
        }
        let reads_parts = PART_PATTERNS.iter().any(|pattern| source.contains(pattern));
        match on_own_thread(move || parse(source)) {
            Ok(Ok(environment)) => {
                let (environment, is_endless) = (Arc::new(environment), AtomicBool::new(false));
                Ok(ChatTemplate { environment, file, reads_parts, variables, is_endless })
            }
            Ok(Err(error)) => bail!("{shown}: the chat template does not parse ({error}); fix it"),
            Err(reason) => bail!("{shown}: the chat template cannot be parsed: it {reason}; fix it"),
        }
    }

    /// The file of the template.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a rendering took too long. Its thread may still run.
    pub fn is_endless(&self) -> bool {
        self.is_endless.load(Ordering::Relaxed)
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
        if self.is_endless() {
            return Err("it took too long before".into());
        }
        let message = |message: &Message| {
            let content = match has_parts {
                true => serde_json::json!([{"type": "text", "text": message.content}]),
                false => message.content.into(),
            };
            serde_json::json!({"role": message.role, "content": content})
        };
        let messages: Vec<Json> = messages.iter().map(message).collect();
        let (environment, mut variables) = (self.environment.clone(), self.variables.clone());
        let rendered = on_own_thread(move || {
            variables.insert("messages".into(), Value::from(Serde(messages)));
            let template = environment.get_template(NAME);
            let rendered = template.and_then(|template| template.render(Value::from_pairs(variables)));
            rendered.map_err(|error| one_line(&error))
        });
        rendered.unwrap_or_else(|reason| {
            self.is_endless.store(true, Ordering::Relaxed);
            Err(format!("it {reason}"))
        })
    }
}

/// The bytes of the longest expression or statement of a template, without strings and white space.
fn longest_expression(source: &str) -> usize {
    let (mut longest, mut rest) = (0, source.as_bytes());
    while let Some(start) = rest.windows(2).position(|two| matches!(two, b"{{" | b"{%")) {
        rest = &rest[start + 2..];
        let (mut length, mut quote, mut end) = (0, None, 0);
        while end < rest.len()
            && (quote.is_some() || !matches!(&rest[end..], [b'}', b'}', ..] | [b'%', b'}', ..]))
        {
            let byte = rest[end];
            match quote {
                // What is escaped does not end a string.
                Some(_) if byte == b'\\' => end += 1,
                Some(open) if byte == open => quote = None,
                Some(_) => {}
                None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
                None => length += usize::from(!byte.is_ascii_whitespace()),
            }
            end += 1;
        }
        longest = length.max(longest);
        rest = &rest[end.min(rest.len())..];
    }
    longest
}

/// The environment of a template.
///
/// # Errors
/// Why it does not parse, in one line.
fn parse(source: String) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(method);
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
    parsed.map(|()| environment).map_err(|error| one_line(&error))
}

/// The result of `work` on a thread with a large stack, else the predicate of a sentence about it.
fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    let work = move || drop(sender.send(catch_panic(work)));
    if let Err(error) = spawn_with_stack("chat template", STACK_BYTES, work) {
        return Err(format!("needs {} MiB of address space for a stack: {error}", STACK_BYTES >> 20));
    }
    let start = Instant::now();
    let mut memory_before = None;
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(Some(result)) => return Ok(result),
            Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err("makes the library panic".into());
            }
            Err(mpsc::RecvTimeoutError::Timeout) if start.elapsed() >= MAX_TIME => {
                return Err(format!("takes over {} seconds", MAX_TIME.as_secs()));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let memory = current_memory().unwrap_or(0);
                if memory > *memory_before.get_or_insert(memory) + MAX_MEMORY {
                    return Err(format!("takes over {} MiB of memory", MAX_MEMORY >> 20));
                }
            }
        }
    }
}

/// A method of Python's strings, lists and dicts. The library does not bound what `format`, `join` and
/// `replace` write.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let text = value.as_str();
    match (name, text, arguments) {
        ("join", Some(_), [values]) => state.apply_filter("join", &[values.clone(), value.clone()]),
        ("replace", Some(text), [from, to, ..]) => {
            if let (Some(from), Some(to)) = (from.as_str(), to.as_str()) {
                let added = text.matches(from).count().saturating_mul(to.len());
                if text.len().saturating_add(added) > MAX_WRITTEN {
                    return Err(Error::new(ErrorKind::OutOfFuel, "the result of replace is too long"));
                }
            }
            unknown_method_callback(state, value, name, arguments)
        }
        ("format", Some(text), _)
            if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 6) =>
        {
            Err(Error::new(ErrorKind::OutOfFuel, "a field of format is too wide"))
        }
        _ => unknown_method_callback(state, value, name, arguments),
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

    /// Sources that overflow a stack of ordinary size, take very long, or write very much.
    fn harmful() -> Vec<String> {
        let chain = |start: &str, link: &str, end: &str| {
            let longest = if start.starts_with("{{") { MAX_EXPRESSION } else { MAX_BYTES };
            let links = (longest - start.len() - end.len()) / link.len();
            format!("{start}{}{end}", link.repeat(links))
        };
        let nested = |start: &str, open: &str, close: &str, end: &str| {
            let longest = if start.starts_with("{{") { MAX_EXPRESSION } else { MAX_BYTES };
            let levels = (longest - start.len() - end.len()) / (open.len() + close.len());
            format!("{start}{}{}{end}", open.repeat(levels), close.repeat(levels))
        };
        let mut all: Vec<String> =
            ["+1", "~a", ".a", "|e", "[0]", "()", "**a", "==a", " and a", " or a", " is b", " in a", "<a"]
                .map(|link| chain("{{ a", link, " }}"))
                .into();
        all.extend(
            ["not ", "-", "(", "[", "{1:", "a if b else ", "a["].map(|open| chain("{{ ", open, "a }}")),
        );
        all.extend(
            [("(", ")"), ("[", "]"), ("f(", ")")].map(|(open, close)| nested("{{ ", open, close, " }}")),
        );
        all.push(chain("{% if a %}", "{% elif a %}", "{% endif %}"));
        all.push(nested("", "{% if a %}", "{% endif %}", ""));
        all.push(nested("", "{% for a in a %}", "{% endfor %}", ""));
        // Values that are nested deeply, or that share their parts, and all that is done with them.
        let grown = |value: &str, rounds: usize, use_of: &str| {
            format!(
                "{{% set n = namespace(x=['a'], y=['a']) %}}{{% for i in range({rounds}) %}}{{% set n.x = {value} %}}{{% set n.y = {} %}}\
                 {{% endfor %}}{{{{ {use_of} }}}}",
                value.replace("n.x", "n.y")
            )
        };
        let uses = [
            "n.x",
            "n.x|string",
            "n.x == n.y",
            "n.x < n.y",
            "n.x in [n.y]",
            "[n.x, n.y]|sort",
            "[n.x, n.y]|unique|list",
            "{n.x: 1}",
            "n.x|list",
            "n.x|length",
            "','.join([n.x])",
            "n.x ~ n.y",
            "n.x + n.y",
            "'%s'|format(n.x)",
            "'{}'.format(n.x)",
            "n.x|pprint",
        ];
        for value in ["[n.x]", "{'a': n.x}", "(n.x,)"] {
            all.extend(uses.map(|use_of| grown(value, 99_999, use_of)));
        }
        all.extend(
            ["n.x ~ n.x", "n.x|map('string')|list", "n.x|reverse"].map(|value| grown(value, 99_999, "n.x")),
        );
        all.extend(
            [
                "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
                "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
                "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
                "{{ ('a' * 1000000).replace('', 'a' * 1000000, 999999) }}",
                "{{ ('a' * 1000000).join(range(99999)) }}",
                "{{ range(99999)|join('a' * 1000000) }}",
                "{{ '{:999999999}'.format(1) }}{{ '%999999999d'|format(1) }}",
                "{{ 'a'|center(999999999) }}{{ 'a'|indent(999999999) }}",
                "{{ [1]|slice(999999999)|list }}{{ [1]|batch(999999999, 1)|list }}",
                "{% set x %}{{ 'a' * 9999999 }}{% endset %}{% for i in range(9999) %}{{ x }}{% endfor %}",
                "{{ ('a,' * 9999999).split(',')|length }}",
            ]
            .map(String::from),
        );
        all
    }

    /// Parsing and rendering end, in a sentence or a text.
    #[test]
    fn harmful_templates_are_bounded() {
        for source in harmful() {
            let shown: String = source.chars().take(300).collect();
            let result = match template(&source) {
                Ok(template) => template.render(&[Message { role: "query", content: "a" }], false),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = result {
                let reasons = ["panic", "address space"];
                assert!(!reasons.iter().any(|reason| error.contains(reason)), "{shown}: {error}");
                assert!(!error.contains('\n'), "{shown}: {error}");
            }
        }
        for (source, length) in [
            ("{{ a }}{# a #}{% if '}}' %}", 2),
            (r#"{{ "\"}}" ~ 'a' }} aaaaa"#, 1),
            ("{{ aaa", 3),
            ("a {{a}} {{ 'b", 1),
            ("{ % aa }", 0),
        ] {
            assert_eq!(longest_expression(source), length, "{source}");
        }
        let error = template(&format!("{{{{ a{} }}}}", "+1".repeat(2_100))).err().unwrap().to_string();
        assert!(error.contains("an expression of 4201 bytes beside its strings"), "{error}");
        let error = template(&"a".repeat(MAX_BYTES + 1)).err().unwrap().to_string();
        assert!(error.contains("131073 bytes, and at most 131072 are read; use a shorter one"), "{error}");
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
