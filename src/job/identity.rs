//! The identity of a run: what a run that resumes it must share with it, and the parts of it that rows depend
//! on.

use anyhow::Result;

use super::digests::FileDigests;
use super::manifest::RunIdentity;
use crate::store::Hasher;
use crate::sys;

/// The key of the release and the build. Builds of one release can compute different bits.
const BUILD: &str = "the release of Sconce";
/// The key of the device: devices and instruction sets round differently.
pub const DEVICE: &str = "the device";

/// The identity of a run, in its parts.
pub struct Identity {
    /// What only resuming depends on: the inputs, and how they are read.
    pub of_input: RunIdentity,
    /// The resolved options that every row depends on.
    pub choices: RunIdentity,
    /// The digests of the model's files.
    pub files: FileDigests,
}

impl Identity {
    /// The build, as an entry of an identity.
    fn build() -> (String, String) {
        (BUILD.into(), sys::BUILD.into())
    }

    /// All that a run must share with an interrupted one to resume it.
    pub fn whole(&mut self) -> Result<RunIdentity> {
        let mut whole = self.of_rows()?;
        whole.extend(self.of_input.clone());
        Ok(whole)
    }

    /// All that rows with the same tokens depend on.
    fn of_rows(&mut self) -> Result<RunIdentity> {
        let files = self.files.wait()?;
        Ok(self.choices.clone().into_iter().chain(files).chain([Identity::build()]).collect())
    }

    /// The digest of what the bits of rows depend on beside their tokens.
    pub fn digest_of_rows(&mut self) -> Result<u128> {
        self.of_rows().map(|identity| digest(&identity))
    }

    /// The digest of the model and the options. Devices and builds may differ.
    pub fn digest_of_options(&mut self) -> Result<u128> {
        let mut identity = self.of_rows()?;
        identity.retain(|key, _| key != BUILD && key != DEVICE);
        Ok(digest(&identity))
    }
}

/// The first 128 bits of the SHA-256 over the keys and values of an identity.
fn digest(identity: &RunIdentity) -> u128 {
    let mut hasher = Hasher::default();
    identity.iter().flat_map(|(key, value)| [key, value]).for_each(|part| hasher.add_part(part));
    hasher.digest().first_bits()
}
