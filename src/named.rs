//! Values with names: the choices of command-line options and of file formats.

/// An enum whose values have names. Each name is stated once, where the enum is defined: the command line
/// lists and parses it, and messages, manifests and metadata use it.
pub trait Named: Copy + 'static {
    /// All values, in the order in which help lists them.
    const ALL: &'static [Self];

    /// The name of the value.
    fn name(self) -> &'static str;

    /// The value with a name, which is no alias.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }

    /// The names of all values, for a sentence.
    fn names() -> String {
        Self::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", ")
    }

    /// Other names that are accepted for the value, but not listed.
    fn aliases(self) -> &'static [&'static str] {
        &[]
    }
}

/// Implements [`Named`] for an enum by a table of its variants, in the order of [`Named::ALL`]:
/// `Variant => NAME | ALIAS | …`. The compiler rejects a table that lacks a variant.
macro_rules! names {
    ($type:ident { $($variant:ident => $name:tt $(| $alias:literal)*),+ $(,)? }) => {
        impl $crate::named::Named for $type {
            const ALL: &'static [Self] = &[$($type::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }

            fn aliases(self) -> &'static [&'static str] {
                match self {
                    $($type::$variant => &[$($alias),*]),+
                }
            }
        }
    };
}
pub(crate) use names;
