//! Values of the fields of a request: texts, pairs, token ids. Elements are read one by one, and no more than
//! the limit are kept.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::calls::{OneOrMany, TextAndPair};
use super::error::{Fault, FaultKind};
use crate::error::one_line;
use crate::formats::jsonl::{json_type, lone_surrogate};

/// Maximum characters of a value in a message.
const MAX_SHOWN: usize = 40;

/// What a message calls a value: `inputs`, `inputs[3]`, `inputs[3][1]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueName<'a> {
    /// The field.
    pub field: &'a str,
    /// The index in the list.
    pub index: Option<usize>,
    /// The index in a list of the list.
    pub inner: Option<usize>,
}

impl<'a> ValueName<'a> {
    /// The value of a field.
    pub(super) fn of(field: &'a str) -> Self {
        ValueName { field, index: None, inner: None }
    }

    /// An element of the value.
    fn element(self, index: usize) -> Self {
        match self.index {
            None => ValueName { index: Some(index), ..self },
            Some(_) => ValueName { inner: Some(index), ..self },
        }
    }

    /// The fault of a value that cannot be used; `predicate` follows the name.
    pub(super) fn invalid(self, predicate: &str) -> Fault {
        Fault::invalid(self.field, format!("{self} {predicate}"))
    }
}

impl fmt::Display for ValueName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field)?;
        [self.index, self.inner].into_iter().flatten().try_for_each(|index| write!(f, "[{index}]"))
    }
}

/// A user's value as messages show it: without the characters after the first 40.
pub(in crate::serve) fn shown(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into(),
    }
}

/// What a value that is not of the expected type is: a number as it was sent, of others the type.
pub(super) fn found(json: &str) -> String {
    match json_type(json) {
        "a number" => shown(json),
        other => other.into(),
    }
}

/// Whether a list begins with an element whose JSON begins with one of these characters.
pub(super) fn begins_with(list: &RawValue, first: &[char]) -> bool {
    list.get().strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(first))
}

/// A string; `remedy` says what to send in place of another type.
pub(super) fn string(raw: &RawValue, name: ValueName, remedy: &str) -> Result<String, Fault> {
    let json = raw.get();
    if !json.starts_with('"') {
        return Err(name.invalid(&format!("is {}; {remedy}", json_type(json))));
    }
    serde_json::from_str(json).map_err(|_| {
        let escape = lone_surrogate(json).unwrap_or("an escape");
        name.invalid(&format!(
            "has {escape}, which is half of a character; send the whole character, or remove the escape"
        ))
    })
}

/// A text in a list.
fn text(raw: &RawValue, name: ValueName) -> Result<String, Fault> {
    let remedy = match json_type(raw.get()) {
        "null" => r#"send "" for an empty text"#,
        "a number" | "an array" => "send each text as a string, not as token ids",
        _ => "send each text as a string",
    };
    string(raw, name, remedy)
}

/// The texts of a field: a string, or a list of strings.
pub(super) fn texts(raw: &RawValue, field: &str, max: usize) -> Result<OneOrMany<String>, Fault> {
    if raw.get().starts_with('[') {
        return text_list(raw, field, max);
    }
    let text = string(raw, ValueName::of(field), "send a string or a list of strings")?;
    Ok(OneOrMany { values: vec![text], is_list: false, field: field.into() })
}

/// The texts of a field that takes only a list of strings.
pub(super) fn text_list(raw: &RawValue, field: &str, max: usize) -> Result<OneOrMany<String>, Fault> {
    let values = list(raw, ValueName::of(field), max, text)?;
    Ok(OneOrMany { values, is_list: true, field: field.into() })
}

/// The texts or pairs of a field as text-embeddings-inference reads them: `"text"`, `["text"]` and
/// `["text", "pair"]` are one, `[["text"], ["text", "pair"]]` are several.
pub(super) fn texts_or_pairs(
    raw: &RawValue,
    field: &str,
    max: usize,
) -> Result<OneOrMany<TextAndPair>, Fault> {
    let name = ValueName::of(field);
    let is_list = begins_with(raw, &['[']);
    let values = if is_list {
        list(raw, name, max, text_or_pair)?
    } else if raw.get().starts_with('[') {
        vec![text_or_pair(raw, name)?]
    } else {
        vec![TextAndPair { text: string(raw, name, "send a string, a pair or a list of them")?, pair: None }]
    };
    Ok(OneOrMany { values, is_list, field: field.into() })
}

/// A list of one or two strings.
fn text_or_pair(raw: &RawValue, name: ValueName) -> Result<TextAndPair, Fault> {
    let mut strings =
        strings_of_pair(raw, name, r#"send several texts as [["first"], ["second"], …]"#)?.into_iter();
    match strings.next() {
        Some(text) => Ok(TextAndPair { text, pair: strings.next() }),
        None => Err(empty(name, "one text, or two for a pair")),
    }
}

/// The pairs of a field: a list of lists of two strings.
pub(super) fn pairs(raw: &RawValue, field: &str, max: usize) -> Result<OneOrMany<TextAndPair>, Fault> {
    let pair = |raw: &RawValue, name: ValueName| {
        let strings = strings_of_pair(raw, name, "send two for each pair")?;
        let strings = <[String; 2]>::try_from(strings);
        let [text, pair] =
            strings.map_err(|_| name.invalid("has less than two strings; send two for each pair"))?;
        Ok(TextAndPair { text, pair: Some(pair) })
    };
    let values = list(raw, ValueName::of(field), max, pair)?;
    Ok(OneOrMany { values, is_list: true, field: field.into() })
}

/// The strings of a list with at most two.
fn strings_of_pair(raw: &RawValue, name: ValueName, remedy: &str) -> Result<Vec<String>, Fault> {
    if !raw.get().starts_with('[') {
        return Err(name.invalid(&format!("is {}; send a list of strings", json_type(raw.get()))));
    }
    let mut strings = Vec::with_capacity(2);
    for_each_element(raw, &mut |index, element| {
        if index == 2 {
            return Err(name.invalid(&format!("has more than two strings; {remedy}")));
        }
        strings.push(text(element, name.element(index))?);
        Ok(())
    })?;
    Ok(strings)
}

/// Token ids of a field: a list of them, or a list of lists.
pub(super) fn token_ids(raw: &RawValue, field: &str, max: usize) -> Result<OneOrMany<Vec<u32>>, Fault> {
    let name = ValueName::of(field);
    let is_list = begins_with(raw, &['[']);
    let values = if is_list { list(raw, name, max, ids)? } else { vec![ids(raw, name)?] };
    if !is_list && values.iter().all(Vec::is_empty) {
        return Err(empty(name, "a list of token ids"));
    }
    Ok(OneOrMany { values, is_list, field: field.into() })
}

/// A list of token ids.
fn ids(raw: &RawValue, name: ValueName) -> Result<Vec<u32>, Fault> {
    let expected = "send token ids, integers from 0 to 4294967295";
    if let Ok(ids) = serde_json::from_str(raw.get()) {
        return Ok(ids);
    }
    if !raw.get().starts_with('[') {
        return Err(name.invalid(&format!("is {}; send a list of token ids", found(raw.get()))));
    }
    let mut ids = Vec::new();
    for_each_element(raw, &mut |index, element| {
        let id = serde_json::from_str(element.get());
        let fault = |_| name.element(index).invalid(&format!("is {}; {expected}", found(element.get())));
        ids.push(id.map_err(fault)?);
        Ok(())
    })?;
    Ok(ids)
}

/// The elements of a list, which has at least one and at most `max`.
pub(super) fn list<'a, T>(
    raw: &'a RawValue,
    name: ValueName,
    max: usize,
    mut read: impl FnMut(&'a RawValue, ValueName) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    if !raw.get().starts_with('[') {
        return Err(name.invalid(&format!("is {}; send a list", found(raw.get()))));
    }
    let mut values = Vec::new();
    for_each_element(raw, &mut |index, element| {
        if index == max {
            return Err(name.invalid(&format!(
                "has more than {max} elements; send fewer in one request, or start the server with a larger --max-client-batch-size"
            )));
        }
        values.push(read(element, name.element(index))?);
        Ok(())
    })?;
    if values.is_empty() { Err(empty(name, "at least one element")) } else { Ok(values) }
}

/// The fault of an empty list.
fn empty(name: ValueName, remedy: &str) -> Fault {
    Fault::of(FaultKind::Empty, name.field, format!("{name} is an empty list; send {remedy}"))
}

/// What is done with each element of a list.
type OnElement<'v, 'a> = &'v mut dyn FnMut(usize, &'a RawValue) -> Result<(), Fault>;

/// Calls `visit` with each element of a list, until it returns a fault.
fn for_each_element<'a>(list: &'a RawValue, visit: OnElement<'_, 'a>) -> Result<(), Fault> {
    let mut fault = None;
    let mut json = serde_json::Deserializer::from_str(list.get());
    let read = json.deserialize_seq(ElementVisitor { visit, fault: &mut fault });
    let unexpected = |error: serde_json::Error| Fault::new(FaultKind::MalformedJson, one_line(&error));
    read.map_err(|error| fault.unwrap_or_else(|| unexpected(error)))
}

struct ElementVisitor<'v, 'a> {
    visit: OnElement<'v, 'a>,
    fault: &'v mut Option<Fault>,
}

impl<'de> Visitor<'de> for ElementVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(element) = elements.next_element()? {
            if let Err(fault) = (self.visit)(index, element) {
                *self.fault = Some(fault);
                return Err(A::Error::custom("an element cannot be used"));
            }
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    /// The message of the fault, or the debug text of the value.
    fn outcome<T: fmt::Debug>(result: Result<T, Fault>) -> String {
        result.map_or_else(|fault| fault.message, |value| format!("{value:?}"))
    }

    #[test]
    fn texts_are_strings() {
        for (json, is_list, values) in [
            (r#""""#, false, &[""][..]),
            (r#""a\nb""#, false, &["a\nb"]),
            (r#"[ "灯" , "\u706f", "\ud83d\udd25" ]"#, true, &["灯", "灯", "🔥"]),
            (r#"["x","",""]"#, true, &["x", "", ""]),
        ] {
            let texts = texts(raw(json), "inputs", 3).unwrap();
            assert_eq!(
                (texts.is_list, texts.values),
                (is_list, values.iter().map(|v| (*v).into()).collect())
            );
        }
        for (json, message) in [
            ("[]", "inputs is an empty list; send at least one element"),
            ("7", "inputs is a number; send a string or a list of strings"),
            (r#"{"a":1}"#, "inputs is an object; send a string or a list of strings"),
            (r#"["a",null]"#, r#"inputs[1] is null; send "" for an empty text"#),
            (r#"["a","b",7]"#, "inputs[2] is a number; send each text as a string, not as token ids"),
            ("[[1,2],[3]]", "inputs[0] is an array; send each text as a string, not as token ids"),
            (r#"["a",true]"#, "inputs[1] is a boolean; send each text as a string"),
            (
                r#"["a","b \ud83d c"]"#,
                r"inputs[1] has \ud83d, which is half of a character; send the whole character, or remove the escape",
            ),
            (
                r#"["a","b","c",4]"#,
                "inputs has more than 3 elements; send fewer in one request, or start the server with a larger --max-client-batch-size",
            ),
        ] {
            assert_eq!(outcome(texts(raw(json), "inputs", 3)), message);
        }
    }

    #[test]
    fn pairs_are_told_from_lists() {
        let pair =
            |text: &str, pair: Option<&str>| TextAndPair { text: text.into(), pair: pair.map(Into::into) };
        for (json, is_list, values) in [
            (r#""a""#, false, vec![pair("a", None)]),
            (r#"["a"]"#, false, vec![pair("a", None)]),
            (r#"["a","b"]"#, false, vec![pair("a", Some("b"))]),
            (r#"[["a"]]"#, true, vec![pair("a", None)]),
            (r#"[["a","b"],["c"]]"#, true, vec![pair("a", Some("b")), pair("c", None)]),
        ] {
            let found = texts_or_pairs(raw(json), "inputs", 2).unwrap();
            assert_eq!((found.is_list, found.values), (is_list, values), "{json}");
        }
        for (json, message) in [
            ("[]", "inputs is an empty list; send one text, or two for a pair"),
            ("[[]]", "inputs[0] is an empty list; send one text, or two for a pair"),
            ("7", "inputs is a number; send a string, a pair or a list of them"),
            (
                r#"["a","b","c"]"#,
                r#"inputs has more than two strings; send several texts as [["first"], ["second"], …]"#,
            ),
            (r#"[["a"],"b"]"#, "inputs[1] is a string; send a list of strings"),
            (r#"[["a",1]]"#, "inputs[0][1] is a number; send each text as a string, not as token ids"),
        ] {
            assert_eq!(outcome(texts_or_pairs(raw(json), "inputs", 2)), message);
        }
        assert_eq!(pairs(raw(r#"[["a","b"]]"#), "pairs", 1).unwrap().values, [pair("a", Some("b"))]);
        for (json, message) in [
            ("[[]]", "pairs[0] has less than two strings; send two for each pair"),
            (r#"[["a"]]"#, "pairs[0] has less than two strings; send two for each pair"),
            (r#"[["a","b","c"]]"#, "pairs[0] has more than two strings; send two for each pair"),
            (r#""a""#, "pairs is a string; send a list"),
        ] {
            assert_eq!(outcome(pairs(raw(json), "pairs", 1)), message);
        }
    }

    #[test]
    fn token_ids_are_unsigned() {
        for (json, is_list, values) in [
            ("[101, 102]", false, vec![vec![101, 102]]),
            ("[[101],[],[4294967295]]", true, vec![vec![101], vec![], vec![u32::MAX]]),
        ] {
            let ids = token_ids(raw(json), "ids", 3).unwrap();
            assert_eq!((ids.is_list, ids.values), (is_list, values));
        }
        for (json, message) in [
            ("[]", "ids is an empty list; send a list of token ids"),
            ("7", "ids is 7; send a list of token ids"),
            ("[1,-2]", "ids[1] is -2; send token ids, integers from 0 to 4294967295"),
            ("[[1],[2,1.5]]", "ids[1][1] is 1.5; send token ids, integers from 0 to 4294967295"),
            (r#"[[1],"a"]"#, "ids[1] is a string; send a list of token ids"),
            ("[4294967296]", "ids[0] is 4294967296; send token ids, integers from 0 to 4294967295"),
        ] {
            assert_eq!(outcome(token_ids(raw(json), "ids", 3)), message);
        }
        let huge = outcome(token_ids(raw(&format!("[{}]", "9".repeat(9999))), "ids", 3));
        assert_eq!(
            huge,
            format!("ids[0] is {}…; send token ids, integers from 0 to 4294967295", "9".repeat(40))
        );
    }
}
