//! Which field of a file has the vectors: a column, a field of JSON objects, an array or a tensor.

use anyhow::{Result, anyhow, bail};

use super::error::has_several;
use crate::error::{UsageError, one_line};

/// The maximum number of fields that an error lists.
const MAX_LISTED: usize = 20;

/// The field that has the vectors of a file.
#[derive(Debug, Clone, Copy, Default)]
pub enum VectorField<'a> {
    /// The one that `sconce embed` writes, else the only one that can have vectors.
    #[default]
    Auto,
    /// The one of this name (`--vector-field`).
    Named(&'a str),
    /// The one of this name, in a file that has it.
    IfPresent(&'a str),
}

/// What a field can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Vectors.
    Vectors,
    /// Vectors or other data: integers, or one vector.
    Ambiguous,
    /// Other data.
    Other,
}

/// A field of a file.
pub(super) struct Candidate {
    /// Its name.
    pub name: String,
    /// Its type, for messages.
    pub type_name: String,
    /// What it can hold.
    pub held: Held,
}

impl<'a> VectorField<'a> {
    /// The option `--vector-field`.
    pub fn named(name: Option<&'a str>) -> Self {
        name.map_or(VectorField::Auto, VectorField::Named)
    }

    /// The name, if it has to be or can be in a file.
    pub(super) fn name(self) -> Option<&'a str> {
        match self {
            VectorField::Auto => None,
            VectorField::Named(name) | VectorField::IfPresent(name) => Some(name),
        }
    }

    /// Refuses a name for the only array of a file.
    pub(super) fn check_unnamed(self, file: &str, format: &str) -> Result<()> {
        match self {
            VectorField::Named(name) => bail!(UsageError(format!(
                "--vector-field {name}: {file} is {format}, which has one array without a name; remove the option"
            ))),
            _ => Ok(()),
        }
    }

    /// The index of the field among `fields`, which are `noun`s of the file. `own`: the names that
    /// `sconce embed` writes, best first.
    pub(super) fn find(self, file: &str, noun: &str, own: &[&str], fields: &[Candidate]) -> Result<usize> {
        if let Some(name) = self.name()
            && let Some(found) = only(file, noun, name, fields)?
        {
            return Ok(found);
        }
        if let VectorField::Named(name) = self {
            let listed = listed(noun, fields);
            bail!(UsageError(format!(
                "--vector-field {name}: {file} has no such {noun} ({listed}); choose one of these"
            )));
        }
        for name in own {
            if let Some(found) = only(file, noun, name, fields)?
                && fields[found].held != Held::Other
            {
                return Ok(found);
            }
        }
        let is_only = fields.len() == 1;
        let has_vectors = |held| held == Held::Vectors || is_only && held == Held::Ambiguous;
        let found = fields.iter().enumerate().filter(|(_, field)| has_vectors(field.held));
        let found: Vec<usize> = found.map(|(i, _)| i).collect();
        let (own, listed) = (own[0], listed(noun, fields));
        match found[..] {
            [found] => Ok(found),
            [] => Err(anyhow!(
                "{file} has no {noun} \"{own}\" of vectors, nor any other ({listed}); pass a file of vectors"
            )),
            _ => Err(anyhow!(
                "{file} has no {noun} \"{own}\", but several of vectors ({listed}); choose one with --vector-field NAME"
            )),
        }
    }
}

/// The only field of this name.
fn only(file: &str, noun: &str, name: &str, fields: &[Candidate]) -> Result<Option<usize>> {
    let mut found = fields.iter().enumerate().filter(|(_, field)| field.name == name).map(|(i, _)| i);
    match (found.next(), found.count()) {
        (found, 0) => Ok(found),
        (_, more) => Err(has_several(file, noun, name, 1 + more, "--vector-field")),
    }
}

/// The fields with their types.
fn listed(noun: &str, fields: &[Candidate]) -> String {
    if fields.is_empty() {
        return format!("{noun}s: none");
    }
    let shown = fields.iter().take(MAX_LISTED).map(|field| format!("{} ({})", field.name, field.type_name));
    let shown = one_line(&shown.collect::<Vec<_>>().join(", "));
    match fields.len().saturating_sub(MAX_LISTED) {
        0 => format!("{noun}s: {shown}"),
        more => format!("{noun}s: {shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Held, VectorField};

    #[test]
    fn the_own_field_then_the_only_one_of_floats() {
        use Held::{Ambiguous, Other, Vectors};
        let find = |field: VectorField, fields: &[(&str, Held)]| {
            let candidate = |(name, held): &(&str, Held)| Candidate {
                name: (*name).into(),
                type_name: format!("{held:?}"),
                held: *held,
            };
            let fields: Vec<Candidate> = fields.iter().map(candidate).collect();
            let found = field.find("a.x", "column", &["embedding"], &fields);
            found.map_err(|error| error.to_string())
        };
        let auto = |fields: &[(&str, Held)]| find(VectorField::Auto, fields);
        assert_eq!(auto(&[("id", Other), ("vec", Vectors), ("embedding", Ambiguous)]), Ok(2));
        assert_eq!(auto(&[("embedding", Other), ("vec", Vectors)]), Ok(1));
        assert_eq!(auto(&[("vec", Ambiguous)]), Ok(0));
        let error = auto(&[("id", Other), ("vec", Ambiguous)]).unwrap_err();
        let expected = "a.x has no column \"embedding\" of vectors, nor any other (columns: id (Other), vec (Ambiguous)); ";
        assert!(error.starts_with(expected), "{error}");
        let error = auto(&[("a", Vectors), ("b", Vectors)]).unwrap_err();
        assert!(error.ends_with("(columns: a (Vectors), b (Vectors)); choose one with --vector-field NAME"));
        let two = [("embedding", Vectors), ("id", Other), ("embedding", Other)];
        assert!(auto(&two).unwrap_err().starts_with("a.x has 2 columns \"embedding\"; rename one of them"));
        assert_eq!(find(VectorField::Named("id"), &two), Ok(1));
        let error = find(VectorField::Named("x"), &two[..2]).unwrap_err();
        assert!(error.starts_with("--vector-field x: a.x has no such column (columns: embedding"), "{error}");
        assert_eq!(find(VectorField::IfPresent("x"), &two[..2]), Ok(0));
    }
}
