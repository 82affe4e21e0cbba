//! `search --where`: which rows are searched.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use serde_json::Number;

use crate::rows::{FieldValue, abbreviated, to_text};
use crate::sys::console::Console;
use crate::vectors::VectorFile;

/// Rows whose columns are read at a time.
const GROUP_ROWS: usize = 1 << 14;
const EXPECTED: &str = "expected NAME = VALUE, with = != < <= > or >=, and several joined by and";
const OTHER_CONDITIONS: &str = "for other conditions, search a copy of the rows by DuckDB: COPY (FROM 'all.parquet' WHERE …) TO 'some.parquet'";
/// Words of conditions in SQL that are not supported.
const OF_SQL: [&str; 6] = ["or", "not", "is", "in", "like", "between"];
/// All operators.
static OPERATORS: [Operator; 6] = [
    ("=", &[Ordering::Equal]),
    ("!=", &[Ordering::Less, Ordering::Greater]),
    ("<", &[Ordering::Less]),
    ("<=", &[Ordering::Less, Ordering::Equal]),
    (">", &[Ordering::Greater]),
    (">=", &[Ordering::Greater, Ordering::Equal]),
];

/// The name of an operator, and the orders of a value and the literal with which it holds.
type Operator = (&'static str, &'static [Ordering]);

/// Conditions, all of which a row has to meet: `status = "open" and year >= 2020`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conditions(Vec<Condition>);

#[derive(Debug, Clone, PartialEq)]
struct Condition {
    /// A column, or a member of its structs.
    column: String,
    operator: Operator,
    literal: Literal,
}

/// What a value is compared with.
#[derive(Debug, Clone, PartialEq)]
struct Literal {
    text: String,
    /// The number that the text is, without quotes.
    number: Option<Number>,
}

/// A part of the text of conditions.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Word(String),
    Quoted(String),
    Operator(Operator),
}

impl FromStr for Conditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = parts(text)?;
        let is_and = |part: &Part| matches!(part, Part::Word(word) if word.eq_ignore_ascii_case("and"));
        let condition = |parts: &[Part]| match parts {
            [Part::Word(column) | Part::Quoted(column), Part::Operator(operator), value] => {
                let literal = match value {
                    Part::Quoted(text) => Literal { text: text.clone(), number: None },
                    Part::Word(word) => Literal { text: word.clone(), number: number(word) },
                    Part::Operator(_) => return Err(EXPECTED.to_owned()),
                };
                Ok(Condition { column: column.clone(), operator: *operator, literal })
            }
            _ => Err(malformed(parts)),
        };
        parts.split(is_and).map(condition).collect::<Result<_, _>>().map(Conditions)
    }
}

impl FromIterator<Conditions> for Conditions {
    fn from_iter<I: IntoIterator<Item = Conditions>>(conditions: I) -> Self {
        Conditions(conditions.into_iter().flat_map(|conditions| conditions.0).collect())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Condition { column, operator: (operator, _), literal } = self;
        match &literal.number {
            Some(_) => write!(f, "{column} {operator} {}", literal.text),
            None => write!(f, "{column} {operator} '{}'", literal.text.replace('\'', "''")),
        }
    }
}

/// Why parts are no condition.
fn malformed(parts: &[Part]) -> String {
    let is_of_sql =
        |part: &&Part| matches!(part, Part::Word(word) if OF_SQL.contains(&&*word.to_lowercase()));
    match parts.iter().find(is_of_sql) {
        Some(Part::Word(word)) => format!("{word} is not supported; {EXPECTED}; {OTHER_CONDITIONS}"),
        _ => EXPECTED.into(),
    }
}

/// Words, texts in quotes and operators.
fn parts(text: &str) -> Result<Vec<Part>, String> {
    let is_operator = |c: char| "=!<>".contains(c);
    let (mut parts, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        if first == '"' || first == '\'' {
            let mut text = String::new();
            rest = &rest[1..];
            loop {
                let end = rest.split_once(first);
                let (part, more) =
                    end.ok_or_else(|| format!("a text begins with {first} and does not end"))?;
                text.push_str(part);
                rest = more;
                // As in SQL, a quote in the text is doubled.
                let Some(more) = rest.strip_prefix(first) else { break };
                text.push(first);
                rest = more;
            }
            parts.push(Part::Quoted(text));
        } else {
            let ends =
                |c: char| is_operator(c) != is_operator(first) || c.is_whitespace() || "\"'".contains(c);
            let part;
            (part, rest) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            parts.push(match OPERATORS.iter().find(|(name, _)| *name == part) {
                Some(operator) => Part::Operator(*operator),
                None if is_operator(first) => return Err(EXPECTED.into()),
                None => Part::Word(part.into()),
            });
        }
        rest = rest.trim_start();
    }
    Ok(parts)
}

/// A text as a number.
fn number(text: &str) -> Option<Number> {
    let integer = text.parse::<i64>().ok().map(Number::from);
    let integer = integer.or_else(|| text.parse::<u64>().ok().map(Number::from));
    integer.or_else(|| text.parse().ok().and_then(Number::from_f64))
}

impl Condition {
    /// The column of the file, and the members that lead to the value: a column of the whole name, else the
    /// one with the longest name before a dot.
    fn locate(&self, file: &VectorFile) -> Result<(usize, Vec<&str>)> {
        let is_column = |name: &str| file.columns().iter().any(|column| column.name == name);
        let mut dots = self.column.match_indices('.').map(|(at, _)| at).rev();
        let (column, members) = match dots.find(|at| is_column(&self.column[..*at])) {
            Some(at) if !is_column(&self.column) => {
                (&self.column[..at], self.column[at + 1..].split('.').collect())
            }
            _ => (&*self.column, Vec::new()),
        };
        Ok((file.column(column, "--where")?, members))
    }

    /// Whether a member of the value of a row meets the condition.
    fn member_meets(
        &self,
        value: &FieldValue,
        members: &[&str],
        row: usize,
        has_types: bool,
    ) -> Result<bool> {
        let mut value = Cow::Borrowed(value);
        for member in members {
            if value.is_null() {
                return Ok(false);
            }
            let Some(found) = value.member(member) else {
                bail!(
                    "--where {}: the column in row {row} is {}, without a member {member:?}; compare a column, or a member \
                     that it has",
                    self.column,
                    abbreviated(&value.json())
                )
            };
            value = Cow::Owned(found);
        }
        self.meets(&value, row, has_types)
    }

    /// Whether the value of a row, counted from 1, meets the condition; null and NaN do not. Decimals, dates
    /// and times are compared with the literal as one of them, a number with numbers, and without types with
    /// texts that read as one, and a text with the text of any other value.
    fn meets(&self, value: &FieldValue, row: usize, has_types: bool) -> Result<bool> {
        let Condition { column, operator: (_, orders), literal } = self;
        if value.is_null() {
            return Ok(false);
        }
        if let Some(order) = value.order(&literal.text) {
            let order = order.map_err(|held| anyhow!("--where: {column} holds {held}"))?;
            return Ok(orders.contains(&order));
        }
        if let (Some(infinite), Some(literal)) = (value.not_finite(), &literal.number) {
            let order = literal.as_f64().and_then(|literal| infinite.partial_cmp(&literal));
            return Ok(order.is_some_and(|order| orders.contains(&order)));
        }
        let value = &*value.json();
        if value.is_array() || value.is_object() {
            bail!(
                "--where: {column} of row {row} is {}, and lists and structs cannot be compared; compare a member of a struct as \
                 NAME.MEMBER; {OTHER_CONDITIONS}",
                abbreviated(value)
            )
        }
        let Some(text) = to_text(value) else { return Ok(false) };
        let order = match &literal.number {
            None => Some((*text).cmp(&literal.text)),
            Some(literal) => {
                let is_text = has_types && value.is_string();
                let found = value.as_number().cloned().or_else(|| number(text.trim()).filter(|_| !is_text));
                found.and_then(|found| match (found.as_i128(), literal.as_i128()) {
                    (Some(found), Some(literal)) => Some(found.cmp(&literal)),
                    _ => found.as_f64()?.partial_cmp(&literal.as_f64()?),
                })
            }
        };
        let Some(order) = order else {
            bail!(
                "--where: {column} of row {row} is {value}, not a number; write what it is compared with in quotes"
            )
        };
        Ok(orders.contains(&order))
    }
}

impl Conditions {
    /// Makes a search find only the rows that meet all conditions, and prints a note if there is none.
    ///
    /// # Errors
    /// If the file does not have one of the columns: a usage error. If a value cannot be compared with what
    /// the condition says.
    pub(super) fn apply(&self, file: &mut VectorFile, console: &Console) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let located = self.0.iter().map(|condition| condition.locate(file));
        let (columns, members): (Vec<_>, Vec<_>) = located.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let mut searched = Vec::with_capacity(file.rows());
        let has_types = file.has_types();
        // The most conditions that a row meets, from the first one on.
        let mut most = 0;
        for start in (0..file.rows()).step_by(GROUP_ROWS) {
            let rows: Vec<usize> = (start..file.rows().min(start + GROUP_ROWS)).collect();
            for (row, values) in rows.iter().zip(file.values(&rows, &columns)?) {
                // All of them are evaluated, so that what is an error does not depend on the others.
                let values = values.iter().zip(&members);
                let meets = self.0.iter().zip(values).map(|(condition, (value, members))| {
                    condition.member_meets(value, members, row + 1, has_types)
                });
                let meets = meets.collect::<Result<Vec<bool>>>()?;
                let met = meets.iter().take_while(|meets| **meets).count();
                searched.push(met == self.0.len());
                most = most.max(met);
            }
        }
        if let Some(unmet) = self.0.get(..=most).filter(|_| !searched.is_empty()) {
            let unmet = unmet.iter().map(Condition::to_string).collect::<Vec<_>>().join(" and ");
            console.note(format!("--where: no row of {} meets {unmet}; nothing is found", file.name()));
        }
        file.search_only(searched);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_names_operators_and_values() {
        let condition = |column: &str, operator: usize, literal| Condition {
            column: column.into(),
            operator: OPERATORS[operator],
            literal,
        };
        let text = |text: &str| Literal { text: text.into(), number: None };
        let parsed_as = |text: &str, number| Literal { text: text.into(), number: Some(number) };
        let parsed: Conditions =
            "status='is \"open\"' AND \"a and b\" != x and n>=-2 and f<0.5".parse().unwrap();
        assert_eq!(
            parsed.0,
            [
                condition("status", 0, text("is \"open\"")),
                condition("a and b", 1, text("x")),
                condition("n", 5, parsed_as("-2", (-2).into())),
                condition("f", 2, parsed_as("0.5", Number::from_f64(0.5).unwrap())),
            ]
        );
        let quoted = r#"a = 'it''s "so"' and b = "say ""so""" and c = '' and d = ''''"#;
        let texts = ["it's \"so\"", "say \"so\"", "", "'"];
        let conditions = ["a", "b", "c", "d"].iter().zip(texts);
        let conditions = conditions.map(|(column, value)| condition(column, 0, text(value)));
        assert_eq!(quoted.parse::<Conditions>().unwrap().0, conditions.collect::<Vec<_>>());
        let shown = quoted.parse::<Conditions>().unwrap().0[0].to_string();
        assert_eq!(shown, "a = 'it''s \"so\"'");
        for (wrong, word) in [
            ("a = 3 OR b = 4", "OR"),
            ("a = 3 and not b = 4", "not"),
            ("a is null", "is"),
            ("a in (3, 4)", "in"),
            ("a like 'b%'", "like"),
            ("a between 3 and 4", "between"),
        ] {
            let error = wrong.parse::<Conditions>().unwrap_err();
            assert!(error.starts_with(&format!("{word} is not supported; expected NAME = VALUE")), "{error}");
        }
        assert_eq!("is = 3 and in = or".parse::<Conditions>().unwrap().0.len(), 2);
        for wrong in [
            "",
            "a",
            "a = 'b''",
            "a = 'b' 'c'",
            "a =",
            "= 3",
            "a == 3",
            "a = 3 and",
            "a = 3 or b = 4",
            "a = 'b",
            "a = =",
        ] {
            assert!(wrong.parse::<Conditions>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_compared_as_numbers_or_as_text() {
        let big = i64::MAX;
        for (condition, value, expected) in [
            ("x = 3", json!(3.0), Some(true)),
            (&format!("x < {big}"), json!(big - 1), Some(true)),
            (&format!("x < {big}"), json!(big as u64 + 1), Some(false)),
            (&format!("x = {}", u64::MAX), json!(u64::MAX), Some(true)),
            (&format!("x = {}", u64::MAX), json!(u64::MAX - 1), Some(false)),
            ("x = 3", json!("three"), None),
            ("x = 3", json!("3"), None),
            ("x != 3", json!(null), Some(false)),
            ("x != open", json!("closed"), Some(true)),
            ("x < '2026-02'", json!("2026-01-31"), Some(true)),
            ("x = '7'", json!(7), Some(true)),
            ("x = true", json!(true), Some(true)),
            ("x = '[1]'", json!([1]), None),
            ("x = '[1]'", json!("[1]"), Some(true)),
        ] {
            let condition = &condition.parse::<Conditions>().unwrap().0[0];
            let found = condition.meets(&FieldValue::Json(value.clone()), 4, true);
            assert_eq!(found.ok(), expected, "{condition} with {value}");
        }
        let condition = &"x > 3".parse::<Conditions>().unwrap().0[0];
        let found = condition.meets(&FieldValue::Json(json!("3.5")), 4, false);
        assert!(found.unwrap(), "a column without types");
    }
}
