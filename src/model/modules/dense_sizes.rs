//! Dense modules with a folder for each number of dimensions, of which `modules.json` names one:
//! `2_Dense_1024` beside `2_Dense_256`. `--dimensions` chooses another one.

use std::path::Path;

use super::list::Module;
use crate::model::layout::{CONFIG, MODULE_WEIGHTS};
use crate::sys::regular_file::has_dir_entry;

/// The folder of a Dense module for this number of dimensions, below the model's directory.
fn folder(stem: &str, dimensions: usize) -> String {
    format!("{stem}_{dimensions}")
}

/// The number at the end of a folder's name, and the name before it: `2_Dense` and 1024.
fn parse(folder: &str) -> Option<(&str, usize)> {
    let (stem, dimensions) = folder.rsplit_once('_')?;
    let dimensions = dimensions.parse().ok().filter(|n| *n > 0)?;
    Some((stem, dimensions)).filter(|_| self::folder(stem, dimensions) == folder)
}

/// The numbers of dimensions of the first module that has several folders; empty if none has.
pub(super) fn in_folder(entries: &[Module], model: &Path) -> Vec<usize> {
    let mut sizes = entries.iter().map(|module| module.dense_sizes(model));
    sizes.find(|sizes| sizes.len() > 1).unwrap_or_default()
}

impl Module {
    /// The numbers of dimensions that the model has a folder with a configuration for, in ascending order.
    fn dense_sizes(&self, model: &Path) -> Vec<usize> {
        let Some((stem, _)) = self.sized_folder() else { return Vec::new() };
        let entries = std::fs::read_dir(model).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let has_config = |name: &str| has_dir_entry(&model.join(name).join(CONFIG));
        let mut sizes: Vec<usize> = names
            .filter(|name| has_config(name))
            .filter_map(|name| parse(&name).filter(|(other, _)| *other == stem).map(|(_, size)| size))
            .collect();
        sizes.sort_unstable();
        sizes
    }

    /// Takes the folder for this number of dimensions if the model has it.
    pub(super) fn choose_size(&mut self, model: &Path, dimensions: usize) {
        let chosen = self.folder_for(dimensions);
        if let Some(chosen) = chosen.filter(|chosen| has_dir_entry(&model.join(chosen).join(CONFIG))) {
            self.path = chosen;
        }
    }

    /// The folder for this number of dimensions; `None` if the module has no folders by dimensions.
    pub fn folder_for(&self, dimensions: usize) -> Option<String> {
        self.sized_folder().map(|(stem, _)| folder(stem, dimensions))
    }

    /// Whether a file of the model has the weights of this module for another number of dimensions.
    pub fn is_weights_of_other_size(&self, file: &str) -> bool {
        let Some((folder, name)) = file.rsplit_once('/') else { return false };
        let has_same_stem =
            || parse(folder).map(|(stem, _)| stem) == self.sized_folder().map(|(stem, _)| stem);
        self.sized_folder().is_some()
            && MODULE_WEIGHTS.contains(&name)
            && folder != self.path
            && has_same_stem()
    }

    fn sized_folder(&self) -> Option<(&str, usize)> {
        parse(&self.path).filter(|_| self.class() == "Dense")
    }
}

/// Whether the directory of a model may lack a folder that the repository has, because another tool
/// downloaded the one in `modules.json` alone.
pub fn may_lack_size(
    modules: &[Module],
    model: &Path,
    dimensions: usize,
    is_absent: &dyn Fn(&str) -> bool,
) -> bool {
    modules.iter().any(|module| {
        let Some(folder) = module.folder_for(dimensions) else { return false };
        let config = format!("{folder}/{CONFIG}");
        !has_dir_entry(&model.join(&config)) && module.dense_sizes(model).len() < 2 && !is_absent(&config)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_by_dimensions() {
        assert_eq!(parse("2_Dense_1024"), Some(("2_Dense", 1024)));
        for other in ["2_Dense", "2_Dense_", "2_Dense_0", "2_Dense_064", "Dense"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
