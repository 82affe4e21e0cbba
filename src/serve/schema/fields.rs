//! The body of a request as an object whose fields are taken one by one. Values are slices of the body until
//! they are taken, and what nobody takes was ignored.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Error as JsonError;
use serde_json::value::RawValue;

use super::calls::OneOrMany;
use super::error::{Fault, FaultKind};
use super::values::{self, ValueName, found, shown, string};
use crate::formats::jsonl::json_type;
use crate::named::Named;
use crate::text::OnLong;

/// Maximum number of fields of an object.
const MAX_FIELDS: usize = 64;

/// An object of a request.
#[derive(Clone)]
pub(super) struct RequestFields<'a> {
    /// What is put before a name to tell where the field is: nothing, or `options.`.
    path: String,
    /// The fields that were not taken so far.
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> RequestFields<'a> {
    /// The object of a body.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Fault> {
        let malformed = |message: String| Fault::new(FaultKind::MalformedJson, message);
        let json = std::str::from_utf8(body).map_err(|error| {
            malformed(format!("the body is not UTF-8 at byte {}; send JSON in UTF-8", error.valid_up_to()))
        })?;
        let json = json.strip_prefix('\u{feff}').unwrap_or(json).trim_ascii();
        if json.is_empty() {
            return Err(malformed("the body is empty; send a JSON object".into()));
        }
        if json.starts_with("{'") {
            let message = "the body is a Python dict, not JSON; send what json.dumps makes of it";
            return Err(malformed(message.into()));
        }
        Self::parse(json, String::new())
    }

    /// The object that is a value of a request, with what its fields are called.
    pub(super) fn of(raw: &'a RawValue, path: String) -> Result<Self, Fault> {
        Self::parse(raw.get(), path)
    }

    fn parse(json: &'a str, path: String) -> Result<Self, Fault> {
        let (mut fields, mut last, mut fault) = (Vec::new(), None, None);
        let mut parser = serde_json::Deserializer::from_str(json);
        let object = ObjectVisitor { path: &path, fields: &mut fields, last: &mut last, fault: &mut fault };
        let read = parser.deserialize_map(object).and_then(|()| parser.end());
        match (read, fault) {
            (Ok(()), None) => Ok(RequestFields { path, fields }),
            (_, Some(fault)) => Err(fault),
            (Err(error), None) if error.is_data() => {
                let found = json_type(json);
                Err(match path.strip_suffix('.') {
                    Some(name) => ValueName::of(name).invalid(&format!("is {found}; send a JSON object")),
                    None => {
                        let message = format!("the body is {found}; send a JSON object");
                        Fault::new(FaultKind::MalformedJson, message)
                    }
                })
            }
            (Err(error), None) => Err(malformed(json, &error, last.as_deref())),
        }
    }

    /// Whether the object has the field, and it is not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(found, raw)| found == name && raw.get() != "null")
    }

    /// Whether the value of the field is an object.
    pub(super) fn is_object(&self, name: &str) -> bool {
        self.fields.iter().any(|(found, raw)| found == name && raw.get().starts_with('{'))
    }

    /// What a message calls the field.
    pub(super) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Takes a field; `None` if it is absent or null.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let index = self.fields.iter().position(|(found, _)| found == name)?;
        Some(self.fields.remove(index).1).filter(|raw| raw.get() != "null")
    }

    /// The fault of a field that has to be there.
    pub(super) fn missing(&self, name: &str, remedy: &str) -> Fault {
        let name = self.name(name);
        let message = format!("{name} is missing; {remedy}");
        Fault::invalid(name, message)
    }

    /// Takes a string.
    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        string(raw, ValueName::of(&self.name(name)), "send a string").map(Some)
    }

    /// Takes a string that has to be there.
    pub(super) fn required(&mut self, name: &str) -> Result<String, Fault> {
        self.string(name)?.ok_or_else(|| self.missing(name, "send a string"))
    }

    /// Takes the name of a model.
    pub(super) fn model(&mut self) -> Result<Option<String>, Fault> {
        self.model_in("model")
    }

    /// Takes the name of a model from a field, without `:latest`, which Ollama's clients add. An empty name
    /// is absent.
    pub(super) fn model_in(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let model = self.string(name)?.filter(|model| !model.is_empty());
        Ok(model.map(|model| model.strip_suffix(":latest").map(String::from).unwrap_or(model)))
    }

    /// `truncate`: whether texts over the limit are truncated, or an error.
    pub(super) fn truncate(&mut self) -> Result<Option<OnLong>, Fault> {
        let action = |truncate| if truncate { OnLong::Truncate } else { OnLong::Error };
        Ok(self.flag("truncate")?.map(action))
    }

    /// Takes `true` or `false`.
    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        let name = self.name(name);
        match raw.get() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            other => Err(ValueName::of(&name).invalid(&format!("is {}; send true or false", found(other)))),
        }
    }

    /// Takes an integer that is not less than `min`.
    pub(super) fn integer(&mut self, name: &str, min: usize) -> Result<Option<usize>, Fault> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        let name = self.name(name);
        // More could not be addressed, and sums of smaller numbers do not overflow.
        let number = serde_json::from_str::<u32>(raw.get()).ok().map(|number| number as usize);
        let number = number.filter(|number| *number >= min);
        number.map(Some).ok_or_else(|| {
            let found = found(raw.get());
            ValueName::of(&name).invalid(&format!("is {found}; send an integer from {min} to {}", u32::MAX))
        })
    }

    /// Takes a string that names a value, in upper or lower case.
    pub(super) fn named<T: Named>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        self.one_of(name, T::ALL)
    }

    /// Takes a string that names one of `values`, in upper or lower case.
    pub(super) fn one_of<T: Named>(&mut self, name: &str, values: &[T]) -> Result<Option<T>, Fault> {
        let Some(value) = self.string(name)? else { return Ok(None) };
        let named = |choice: &&T| {
            let aliases = choice.aliases().iter().copied();
            aliases.chain([choice.name()]).any(|name| name.eq_ignore_ascii_case(&value))
        };
        values.iter().find(named).map(|choice| Some(*choice)).ok_or_else(|| {
            let name = self.name(name);
            ValueName::of(&name).invalid(&format!("is {:?}; send {}", shown(&value), alternatives(values)))
        })
    }

    /// Takes a string or a list of at most `max` strings, which has to be there.
    pub(super) fn texts(&mut self, name: &str, max: usize) -> Result<OneOrMany<String>, Fault> {
        let Some(raw) = self.take(name) else {
            return Err(self.missing(name, "send a string or a list of strings"));
        };
        values::texts(raw, &self.name(name), max)
    }

    /// Takes an object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Self>, Fault> {
        self.take(name).map(|raw| Self::of(raw, format!("{}.", self.name(name)))).transpose()
    }

    /// The names of the fields that were not taken and are not null.
    pub(super) fn ignored(self) -> Vec<String> {
        let fields = self.fields.iter().filter(|(_, raw)| raw.get() != "null");
        fields.map(|(name, _)| self.name(name)).collect()
    }
}

/// The names of values as a sentence has them: `"a", "b" or "c"`.
fn alternatives<T: Named>(values: &[T]) -> String {
    let mut names: Vec<String> = values.iter().map(|value| format!("{:?}", value.name())).collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} or {last}", names.join(", ")) }
}

/// The fault of JSON that cannot be parsed. `last` is the last field whose name was read.
fn malformed(json: &str, error: &JsonError, last: Option<&str>) -> Fault {
    let line_start: usize =
        json.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    // The offset of a character before or at the error.
    let near = json.get(line_start + error.column().saturating_sub(2)..).unwrap_or_default();
    let word = near.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let position = format!("line {}, column {}", error.line(), error.column());
    let position = match last {
        Some(last) => format!("{position}, at the field {:?}", shown(last)),
        None => position,
    };
    let message = match ["NaN", "Infinity"].into_iter().find(|number| word.starts_with(number)) {
        Some(number) => {
            format!("the body has {number} ({position}), which JSON does not have; send null or a number")
        }
        None => {
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            format!("the body is not valid JSON ({position}): {reason}; fix it there")
        }
    };
    Fault::new(FaultKind::MalformedJson, message)
}

/// Reads an object into a list of its fields.
struct ObjectVisitor<'v, 'a> {
    path: &'v str,
    fields: &'v mut Vec<(Cow<'a, str>, &'a RawValue)>,
    /// The name that was read last.
    last: &'v mut Option<Cow<'a, str>>,
    fault: &'v mut Option<Fault>,
}

impl<'de> Visitor<'de> for ObjectVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(FieldName(name)) = map.next_key()? {
            let is_repeated = self.fields.iter().any(|(found, _)| *found == name);
            if is_repeated || self.fields.len() == MAX_FIELDS {
                let field = format!("{}{}", self.path, shown(&name).escape_debug());
                *self.fault = Some(if is_repeated {
                    Fault::invalid(&field, format!("{field} is there twice; send it once"))
                } else {
                    let message =
                        format!("{field} is one field more than {MAX_FIELDS}; send only those of the route");
                    Fault::invalid(&field, message)
                });
                return Err(A::Error::custom("a field cannot be used"));
            }
            *self.last = Some(name.clone());
            let value = map.next_value()?;
            self.fields.push((name, value));
        }
        Ok(())
    }
}

/// The name of a field, which is a slice of the body unless it has escapes.
#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TruncationSide;

    fn message<T>(result: Result<T, Fault>) -> String {
        result.err().expect("a fault").message
    }

    #[test]
    fn bodies_that_are_no_object_are_told_what_they_are() {
        for (body, expected) in [
            (&b""[..], "the body is empty; send a JSON object"),
            (b" \n", "the body is empty; send a JSON object"),
            (b"[1]", "the body is an array; send a JSON object"),
            (b"\"text\"", "the body is a string; send a JSON object"),
            (b"null", "the body is null; send a JSON object"),
            (b"{'inputs': 'x'}", "the body is a Python dict, not JSON; send what json.dumps makes of it"),
            (b"{\"a\": \"\xff\"}", "the body is not UTF-8 at byte 7; send JSON in UTF-8"),
            (
                b"{\"a\": 1} x",
                "the body is not valid JSON (line 1, column 10, at the field \"a\"): trailing characters; fix it there",
            ),
            (b"inputs=x", "the body is not valid JSON (line 1, column 1): expected value; fix it there"),
            (
                b"{\"a\": 1,\n \"b\": \"x",
                "the body is not valid JSON (line 2, column 8, at the field \"b\"): EOF while parsing a string; fix it there",
            ),
            (
                b"{\"a\": 1, \"b\": NaN}",
                "the body has NaN (line 1, column 15, at the field \"b\"), which JSON does not have; send null or a number",
            ),
            (
                b"{\"b\":[1,\n -Infinity]}",
                "the body has Infinity (line 2, column 3, at the field \"b\"), which JSON does not have; send null or a number",
            ),
            (b"{\"a\":1,\"b\":2,\"a\":3}", "a is there twice; send it once"),
            (b"{\"\\n\":1,\"\\n\":2}", "\\n is there twice; send it once"),
        ] {
            assert_eq!(message(RequestFields::read(body)), expected);
        }
        let many: Vec<String> = (0..65).map(|i| format!("\"f{i}\":0")).collect();
        let body = format!("{{{}}}", many.join(","));
        let expected = "f64 is one field more than 64; send only those of the route";
        assert_eq!(message(RequestFields::read(body.as_bytes())), expected);
    }

    #[test]
    fn deep_values_are_ignored_without_recursion() {
        let body = format!("{{\"x\":{}{},\"truncate\":true}}", "[".repeat(100_000), "]".repeat(100_000));
        let mut fields = RequestFields::read(body.as_bytes()).unwrap();
        assert_eq!(fields.flag("truncate"), Ok(Some(true)));
        assert_eq!(
            message(fields.texts("x", 9)),
            "x[0] is an array; send each text as a string, not as token ids"
        );
        let open = format!("{{\"x\":{}", "[{\"a\":".repeat(100_000));
        assert!(message(RequestFields::read(open.as_bytes())).contains("at the field \"x\""));
    }

    #[test]
    fn what_is_not_taken_is_ignored_and_null_is_absent() {
        let body =
            b"\xef\xbb\xbf{\"user\":\"u\",\"a\":null,\"\\u0062\":[{}],\"options\":{\"c\":1,\"d\":null}}";
        let mut fields = RequestFields::read(body).unwrap();
        assert_eq!([fields.has("a"), fields.has("b"), fields.has("c")], [false, true, false]);
        assert_eq!((fields.string("a"), fields.flag("x")), (Ok(None), Ok(None)));
        let options = fields.object("options").unwrap().unwrap();
        assert_eq!(
            (options.ignored(), fields.ignored()),
            (vec!["options.c".into()], vec!["user".into(), "b".into()])
        );
    }

    #[test]
    fn values_of_other_types_are_named() {
        let body = r#"{"s":1,"t":"yes","i":-1,"j":1.5,"k":18446744073709551616,"l":"7","o":[],"side":"up","model":""}"#;
        let mut fields = RequestFields::read(body.as_bytes()).unwrap();
        let fields = &mut fields;
        let found = [
            message(fields.required("s")),
            message(fields.required("none")),
            message(fields.flag("t")),
            message(fields.integer("i", 1)),
            message(fields.integer("j", 1)),
            message(fields.integer("k", 1)),
            message(fields.integer("l", 1)),
            message(fields.object("o")),
            message(fields.named::<TruncationSide>("side")),
            message(fields.texts("none", 1)),
        ];
        let expected = [
            "s is a number; send a string",
            "none is missing; send a string",
            "t is a string; send true or false",
            "i is -1; send an integer from 1 to 4294967295",
            "j is 1.5; send an integer from 1 to 4294967295",
            "k is 18446744073709551616; send an integer from 1 to 4294967295",
            "l is a string; send an integer from 1 to 4294967295",
            "o is an array; send a JSON object",
            "side is \"up\"; send \"left\" or \"right\"",
            "none is missing; send a string or a list of strings",
        ];
        assert_eq!(found, expected);
        assert_eq!(fields.model(), Ok(None));
    }

    #[test]
    fn values_are_read() {
        let body = r#"{"side":"Left","n":384,"zero":0,"model":"all-minilm:latest"}"#;
        let mut fields = RequestFields::read(body.as_bytes()).unwrap();
        assert_eq!(fields.named("side"), Ok(Some(TruncationSide::Left)));
        assert_eq!((fields.integer("n", 1), fields.integer("zero", 0)), (Ok(Some(384)), Ok(Some(0))));
        assert_eq!(fields.model(), Ok(Some("all-minilm".into())));
    }
}
