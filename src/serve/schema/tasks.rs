//! `/tasks/{embed,rerank,classify,tag,fill,answer}`: the commands over texts. A request has `texts` or
//! `pairs`, what they are read for, and `options` with the names and values of the command line; its answer
//! has the rows of the command's jsonl.

use super::calls::{OneOrMany, TextAndPair, TextOptions};
use super::error::Fault;
use super::fields::RequestFields;
use super::values::{self, shown};
use crate::rows::OutputDtype;
use crate::task::{Aggregation, PromptChoice};
use crate::text::OnLong;

/// What becomes of the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRoute {
    /// `sconce embed`.
    Embed,
    /// `sconce rerank`: of `texts` for the `query`, or of `pairs` of a query and a text.
    Rerank,
    /// `sconce classify`.
    Classify,
    /// `sconce tag`.
    Tag,
    /// `sconce fill`.
    Fill,
    /// `sconce answer`: of `texts` for the `question`, or of `pairs` of a question and a text.
    Answer,
}

impl TaskRoute {
    /// The field with what all texts are read for.
    fn query(self) -> Option<&'static str> {
        match self {
            TaskRoute::Rerank => Some("query"),
            TaskRoute::Answer => Some("question"),
            TaskRoute::Embed | TaskRoute::Classify | TaskRoute::Tag | TaskRoute::Fill => None,
        }
    }

    /// Whether the first text of a pair is what the second is read for.
    pub fn has_query(self) -> bool {
        self.query().is_some()
    }
}

/// A call of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCall {
    /// The texts or pairs. In `rerank` and `answer` the first text of a pair is the query or the question.
    pub texts: OneOrMany<TextAndPair>,
    /// The query or the question of all texts; `None` if they are pairs, and in other tasks.
    pub query: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The options of the task.
    pub options: TaskRouteOptions,
    /// Names of ignored fields.
    pub ignored: Vec<String>,
}

/// The options of a call. Those of other tasks, and those that were not sent, are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRouteOptions {
    /// How texts are tokenized.
    pub text: TextOptions,
    /// Whether vectors are scaled to unit length.
    pub normalize: Option<bool>,
    /// The number of first dimensions that are kept.
    pub dimensions: Option<usize>,
    /// The element type of vectors.
    pub output_dtype: Option<OutputDtype>,
    /// Whether a text has a vector for each of its tokens, as with `--pooling none`.
    pub per_token: bool,
    /// The number of best rows, labels, tokens or answers; 0: all.
    pub top_k: Option<usize>,
    /// Whether scores are logits.
    pub raw: Option<bool>,
    /// How tokens are joined to entities.
    pub aggregation: Option<Aggregation>,
    /// Tokens that the windows of a long text share.
    pub stride: Option<usize>,
    /// Maximum tokens of an answer.
    pub max_answer_length: Option<usize>,
}

/// The call of `/tasks/{route}`.
pub fn task(body: &[u8], route: TaskRoute, max_texts: usize) -> Result<TaskCall, Fault> {
    let mut fields = RequestFields::read(body)?;
    let query = route.query();
    let has_pairs = route != TaskRoute::Tag && fields.has("pairs");
    let texts =
        if has_pairs { pairs(&mut fields, query, max_texts)? } else { texts(&mut fields, max_texts)? };
    let query = query.filter(|_| !has_pairs).map(|name| fields.required(name)).transpose()?;
    let model = fields.model()?;
    let (mut task_options, mut ignored) = (TaskRouteOptions::default(), Vec::new());
    if let Some(mut given) = fields.object("options")? {
        task_options = options(&mut given, route)?;
        ignored = given.ignored();
    }
    ignored.extend(fields.ignored());
    Ok(TaskCall { texts, query, model, options: task_options, ignored })
}

fn texts(fields: &mut RequestFields, max: usize) -> Result<OneOrMany<TextAndPair>, Fault> {
    let OneOrMany { values, is_list, field } = fields.texts("texts", max)?;
    let values = values.into_iter().map(|text| TextAndPair { text, pair: None });
    Ok(OneOrMany { values: values.collect(), is_list, field })
}

/// The field `pairs`, beside which there are no `texts`, and no query for all of them.
fn pairs(
    fields: &mut RequestFields,
    query: Option<&str>,
    max: usize,
) -> Result<OneOrMany<TextAndPair>, Fault> {
    if let Some(other) = ["texts"].into_iter().chain(query).find(|name| fields.has(name)) {
        let message = format!("pairs and {other} are both there; send one of them");
        return Err(Fault::invalid("pairs", message));
    }
    let Some(raw) = fields.take("pairs") else { return Err(fields.missing("pairs", "send a list of pairs")) };
    values::pairs(raw, "pairs", max)
}

/// The options that a task has.
fn options(given: &mut RequestFields, route: TaskRoute) -> Result<TaskRouteOptions, Fault> {
    let mut options = TaskRouteOptions::default();
    match route {
        TaskRoute::Embed => {
            options.text = text_options(given, &[OnLong::Truncate, OnLong::Error, OnLong::Mean])?;
            options.text.prompt = prompt(given)?;
            options.text.role = given.named("role")?;
            options.normalize = given.flag("normalize")?;
            options.dimensions = given.integer("dimensions", 0)?;
            options.output_dtype = given.named("output_dtype")?;
            options.per_token = per_token(given, &options)?;
        }
        TaskRoute::Rerank => {
            options.text = text_options(given, PAIR_ACTIONS)?;
            options.text.prompt = prompt(given)?;
            options.raw = given.flag("raw")?;
            options.top_k = given.integer("top_k", 0)?;
        }
        TaskRoute::Classify | TaskRoute::Fill => {
            options.text = text_options(given, PAIR_ACTIONS)?;
            options.raw = given.flag("raw")?;
            options.top_k = given.integer("top_k", 0)?;
        }
        TaskRoute::Tag => {
            options.text = text_options(given, PAIR_ACTIONS)?;
            options.raw = given.flag("raw")?;
            options.aggregation = given.named("aggregation")?;
            options.stride = given.integer("stride", 0)?;
            check_windows(given, &options)?;
        }
        TaskRoute::Answer => {
            options.raw = given.flag("raw")?;
            options.top_k = given.integer("top_k", 1)?;
            options.stride = given.integer("stride", 0)?;
            options.max_answer_length = given.integer("max_answer_length", 1)?;
        }
    }
    Ok(options)
}

/// Whether `pooling` is `"none"`, the only value that a request has: the pooling of a model is an option of
/// the server. The vectors of tokens are those of the encoder, which has no options.
fn per_token(given: &mut RequestFields, options: &TaskRouteOptions) -> Result<bool, Fault> {
    let Some(pooling) = given.string("pooling")? else { return Ok(false) };
    let name = given.name("pooling");
    if !pooling.eq_ignore_ascii_case("none") {
        let message = format!("{name} is {:?}; send \"none\", or start the server with it", shown(&pooling));
        return Err(Fault::invalid(name, message));
    }
    let others = [
        ("normalize", options.normalize.is_some()),
        ("dimensions", options.dimensions.is_some()),
        ("output_dtype", options.output_dtype.is_some()),
    ];
    let Some((other, _)) = others.into_iter().find(|(_, is_given)| *is_given) else { return Ok(true) };
    let other = given.name(other);
    let message = format!("{name} and {other} contradict each other; send one of them");
    Err(Fault::invalid(name, message))
}

/// Refuses options that contradict the windows of long texts.
fn check_windows(given: &RequestFields, options: &TaskRouteOptions) -> Result<(), Fault> {
    const WHOLE: &str = "windows have the whole text";
    let others = [
        ("truncation_side", options.text.truncation_side.is_some(), WHOLE),
        ("on_long", options.text.on_long == Some(OnLong::Error), WHOLE),
        ("aggregation", options.aggregation == Some(Aggregation::None), "the entities of windows are joined"),
    ];
    let other = others.into_iter().find(|(_, is_given, _)| *is_given && options.stride.is_some());
    let Some((other, _, reason)) = other else { return Ok(()) };
    let (name, other) = (given.name("stride"), given.name(other));
    let message = format!("{name} and {other} contradict each other, because {reason}; send one of them");
    Err(Fault::invalid(name, message))
}

/// What becomes of long texts, in tasks that take no mean of vectors. A row for each text has to be in an
/// answer, so none is skipped.
const PAIR_ACTIONS: &[OnLong] = &[OnLong::Truncate, OnLong::Error];

fn text_options(given: &mut RequestFields, on_long: &[OnLong]) -> Result<TextOptions, Fault> {
    Ok(TextOptions {
        on_long: given.one_of("on_long", on_long)?,
        truncation_side: given.named("truncation_side")?,
        ..TextOptions::default()
    })
}

/// `prompt` or `prompt_name`.
fn prompt(given: &mut RequestFields) -> Result<Option<PromptChoice>, Fault> {
    match (given.string("prompt")?, given.string("prompt_name")?) {
        (Some(_), Some(_)) => {
            let name = given.name("prompt");
            let message =
                format!("{name} and {} are both there; send one of them", given.name("prompt_name"));
            Err(Fault::invalid(name, message))
        }
        (text, name) => Ok(text.map(PromptChoice::Text).or(name.map(PromptChoice::Name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Role, TruncationSide};

    fn texts(texts: &[&str], is_list: bool) -> OneOrMany<TextAndPair> {
        let values = texts.iter().map(|text| TextAndPair { text: (*text).into(), pair: None }).collect();
        OneOrMany { values, is_list, field: "texts".into() }
    }

    fn pair(first: &str, second: &str) -> OneOrMany<TextAndPair> {
        let pair = TextAndPair { text: first.into(), pair: Some(second.into()) };
        OneOrMany { values: vec![pair], is_list: true, field: "pairs".into() }
    }

    fn call(texts: OneOrMany<TextAndPair>, query: Option<&str>, options: TaskRouteOptions) -> TaskCall {
        TaskCall { texts, query: query.map(Into::into), model: None, options, ignored: Vec::new() }
    }

    #[test]
    fn vectors_are_asked_for_with_options() {
        let none = TaskRouteOptions::default;
        let embed = TaskRouteOptions {
            text: TextOptions {
                truncation_side: Some(TruncationSide::Left),
                role: Some(Role::Query),
                prompt: Some(PromptChoice::Text("p: ".into())),
                on_long: Some(OnLong::Mean),
            },
            normalize: Some(true),
            dimensions: Some(8),
            output_dtype: Some(OutputDtype::Int8),
            ..none()
        };
        for (body, expected) in [
            (r#"{"texts":""}"#, call(texts(&[""], false), None, none())),
            (
                r#"{"texts":["a","b"],"options":{"on_long":"mean","truncation_side":"left","role":"query","prompt":"p: ","normalize":true,"dimensions":8,"output_dtype":"int8"}}"#,
                call(texts(&["a", "b"], true), None, embed),
            ),
            (r#"{"pairs":[["a","b"]],"texts":null}"#, call(pair("a", "b"), None, none())),
            (
                r#"{"texts":["a","b"],"options":{"pooling":"None"}}"#,
                call(texts(&["a", "b"], true), None, TaskRouteOptions { per_token: true, ..none() }),
            ),
        ] {
            assert_eq!(task(body.as_bytes(), TaskRoute::Embed, 2), Ok(expected), "{body}");
        }
    }

    #[test]
    fn calls_have_the_options_of_their_task() {
        let list = || texts(&["a", "b"], true);
        let none = TaskRouteOptions::default;
        let on_long = TextOptions { on_long: Some(OnLong::Error), ..TextOptions::default() };
        let scores = || TaskRouteOptions { text: on_long.clone(), top_k: Some(0), raw: Some(true), ..none() };
        let named = TextOptions { prompt: Some(PromptChoice::Name("n".into())), ..TextOptions::default() };
        for (route, body, expected) in [
            (
                TaskRoute::Rerank,
                r#"{"texts":["a","b"],"query":"q","options":{"prompt_name":"n"}}"#,
                call(list(), Some("q"), TaskRouteOptions { text: named, ..none() }),
            ),
            (TaskRoute::Rerank, r#"{"pairs":[["q","a"]]}"#, call(pair("q", "a"), None, none())),
            (
                TaskRoute::Classify,
                r#"{"texts":["a","b"],"options":{"on_long":"error","top_k":0,"raw":true}}"#,
                call(list(), None, scores()),
            ),
            (
                TaskRoute::Fill,
                r#"{"texts":["a","b"],"options":{"on_long":"error","top_k":0,"raw":true}}"#,
                call(list(), None, scores()),
            ),
            (
                TaskRoute::Tag,
                r#"{"texts":["a","b"],"options":{"aggregation":"Max","stride":0,"raw":false}}"#,
                call(
                    list(),
                    None,
                    TaskRouteOptions {
                        aggregation: Some(Aggregation::Max),
                        stride: Some(0),
                        raw: Some(false),
                        ..none()
                    },
                ),
            ),
            (
                TaskRoute::Answer,
                r#"{"texts":["a","b"],"question":"q","options":{"top_k":2,"stride":9,"max_answer_length":4}}"#,
                call(
                    list(),
                    Some("q"),
                    TaskRouteOptions {
                        top_k: Some(2),
                        stride: Some(9),
                        max_answer_length: Some(4),
                        ..none()
                    },
                ),
            ),
            (TaskRoute::Answer, r#"{"pairs":[["q","a"]]}"#, call(pair("q", "a"), None, none())),
            (
                TaskRoute::Classify,
                r#"{"texts":["a","b"],"query":"q","model":"m:latest","options":{"stride":3,"prompt":"p"}}"#,
                TaskCall {
                    model: Some("m".into()),
                    ignored: ["options.stride", "options.prompt", "query"].map(String::from).to_vec(),
                    ..call(list(), None, none())
                },
            ),
        ] {
            assert_eq!(task(body.as_bytes(), route, 2), Ok(expected), "{body}");
        }
    }

    #[test]
    fn faults_name_the_field() {
        for (route, body, message) in [
            (TaskRoute::Embed, "{}", "texts is missing; send a string or a list of strings"),
            (TaskRoute::Rerank, r#"{"texts":["a"]}"#, "query is missing; send a string"),
            (
                TaskRoute::Embed,
                r#"{"texts":["a"],"pairs":[["a","b"]]}"#,
                "pairs and texts are both there; send one of them",
            ),
            (
                TaskRoute::Rerank,
                r#"{"query":"q","pairs":[["a","b"]]}"#,
                "pairs and query are both there; send one of them",
            ),
            (
                TaskRoute::Embed,
                r#"{"texts":["a"],"options":{"prompt":"p","prompt_name":"n"}}"#,
                "options.prompt and options.prompt_name are both there; send one of them",
            ),
            (
                TaskRoute::Classify,
                r#"{"texts":["a"],"options":{"on_long":"mean"}}"#,
                r#"options.on_long is "mean"; send "truncate" or "error""#,
            ),
            (
                TaskRoute::Embed,
                r#"{"texts":["a"],"options":{"on_long":"skip"}}"#,
                r#"options.on_long is "skip"; send "truncate", "error" or "mean""#,
            ),
            (
                TaskRoute::Embed,
                r#"{"texts":["a"],"options":{"pooling":"mean"}}"#,
                r#"options.pooling is "mean"; send "none", or start the server with it"#,
            ),
            (
                TaskRoute::Embed,
                r#"{"texts":["a"],"options":{"pooling":"none","normalize":false}}"#,
                "options.pooling and options.normalize contradict each other; send one of them",
            ),
            (
                TaskRoute::Tag,
                r#"{"texts":["a"],"options":{"stride":1,"truncation_side":"left"}}"#,
                "options.stride and options.truncation_side contradict each other, because windows have the whole text; send one of them",
            ),
            (
                TaskRoute::Tag,
                r#"{"texts":["a"],"options":{"stride":1,"on_long":"error"}}"#,
                "options.stride and options.on_long contradict each other, because windows have the whole text; send one of them",
            ),
            (
                TaskRoute::Classify,
                r#"{"texts":["a"],"options":[]}"#,
                "options is an array; send a JSON object",
            ),
        ] {
            assert_eq!(task(body.as_bytes(), route, 2).unwrap_err().message, message);
        }
    }
}
