//! Values with names: the choices of command-line options and of file formats.

/// An enum whose values have names. Each name is stated once, where the enum is defined: the command line lists and parses it, and
/// messages, manifests and metadata use it.
pub trait Named: Copy + 'static {
    /// All values, in the order in which help lists them.
    const ALL: &'static [Self];

    /// The name of the value.
    fn name(self) -> &'static str;

    /// Other names that are accepted for the value, but not listed.
    fn aliases(self) -> &'static [&'static str] {
        &[]
    }
}
