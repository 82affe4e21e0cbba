//! Parsers for options whose value is one of a list of names. Help and errors list the names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::named::Named;

/// The value of an option that accepts `auto`, which is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrAuto<T>(pub Option<T>);

/// A parser for the values of `T`.
pub(super) fn named<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    one_of(choices(|value| value))
}

/// A parser for `auto` and the values of `T`.
pub(super) fn named_or_auto<T: Named + Send + Sync>() -> impl TypedValueParser<Value = OrAuto<T>> {
    let auto = (PossibleValue::new("auto"), OrAuto(None));
    one_of([vec![auto], choices(|value| OrAuto(Some(value)))].concat())
}

/// The names of all values of `T`, with what `choice` makes of each value.
pub(super) fn choices<T: Named, C>(choice: impl Fn(T) -> C) -> Vec<(PossibleValue, C)> {
    choices_of(T::ALL, choice)
}

/// The names of these values, with what `choice` makes of each value.
pub(super) fn choices_of<T: Named, C>(values: &[T], choice: impl Fn(T) -> C) -> Vec<(PossibleValue, C)> {
    let names = |value: T| PossibleValue::new(value.name()).aliases(value.aliases());
    values.iter().map(|&value| (names(value), choice(value))).collect()
}

/// A parser for these choices, each with its name and aliases.
pub(super) fn one_of<C: Clone + Send + Sync + 'static>(
    choices: Vec<(PossibleValue, C)>,
) -> impl TypedValueParser<Value = C> {
    let names: Vec<PossibleValue> = choices.iter().map(|(name, _)| name.clone()).collect();
    PossibleValuesParser::new(names).map(move |typed| {
        let choice = choices.iter().find(|(name, _)| name.matches(&typed, false));
        choice.map(|(_, choice)| choice.clone()).expect("clap accepts the listed names only")
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Command;
    use clap::builder::TypedValueParser;

    use super::{OrAuto, named, named_or_auto};
    use crate::formats;
    use crate::input;
    use crate::model::modules::Role;
    use crate::named::Named;
    use crate::neighbours::{Metric, Similarity};
    use crate::nn::{ComputeDtype, OutputKind, Pool};
    use crate::rows::{OutputDtype, OutputFormat};
    use crate::run::attend::AttentionFormat;
    use crate::run::search::WeightKind;
    use crate::task::{Aggregation, Mixing, OnLong};
    use crate::text::{PairTruncation, TruncationSide};

    fn parse<P: TypedValueParser>(parser: P, value: &str) -> Option<P::Value> {
        parser.parse_ref(&Command::new("test"), None, OsStr::new(value)).ok()
    }

    /// Checks that every name and alias is parsed as its value, and that nothing has two meanings.
    fn check<T: Named + PartialEq + std::fmt::Debug + Send + Sync>() {
        let mut names = Vec::new();
        for &value in T::ALL {
            for name in [&[value.name()], value.aliases()].concat() {
                assert_eq!(parse(named::<T>(), name), Some(value), "{name}");
                assert_eq!(parse(named_or_auto::<T>(), name), Some(OrAuto(Some(value))), "{name}");
                assert!(!names.contains(&name), "{name} is the name of two values");
                names.push(name);
            }
        }
        assert_eq!(parse(named_or_auto::<T>(), "auto"), Some(OrAuto(None)));
        for unknown in ["", "auto", "no such name"] {
            assert_eq!(parse(named::<T>(), unknown), None);
        }
    }

    #[test]
    fn every_name_is_parsed_as_its_value() {
        check::<input::Format>();
        check::<OutputFormat>();
        check::<OutputDtype>();
        check::<ComputeDtype>();
        check::<Pool>();
        check::<OutputKind>();
        check::<Similarity>();
        check::<Role>();
        check::<OnLong>();
        check::<TruncationSide>();
        check::<PairTruncation>();
        check::<formats::TableFormat>();
        check::<WeightKind>();
        check::<Metric>();
        check::<AttentionFormat>();
        check::<Mixing>();
        check::<Aggregation>();
    }

    #[test]
    fn data_types_have_the_names_of_numpy_as_aliases() {
        assert_eq!(parse(named::<OutputDtype>(), "float16"), Some(OutputDtype::F16));
        assert_eq!(parse(named::<ComputeDtype>(), "bfloat16"), Some(ComputeDtype::Bf16));
    }
}
