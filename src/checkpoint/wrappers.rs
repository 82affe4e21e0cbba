//! Names of tensors that a wrapper of PyTorch or PEFT has changed.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::Checkpoint;
use super::low_rank::PEFT_PREFIX;

/// What PEFT puts between a module that it has wrapped and the parameters of that.
const BASE_LAYER: &str = ".base_layer.";
/// What wrappers of PyTorch put into the names of the modules that they wrap, wherever these are:
/// `torch.compile`, FSDP, and activation checkpoints. No module has such a name itself.
const WRAPPERS: [&str; 3] = ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."];
/// What wrappers put before the names of all tensors: DDP, and a module that has the model in a field. A
/// family may have the second one in its own names.
const DDP_PREFIX: &str = "module.";
pub(super) const FIELD_PREFIX: &str = "model.";

impl Checkpoint {
    /// Removes from the names what wrappers have added.
    pub(super) fn unwrap_names(&mut self) -> Result<()> {
        let has = |part: &str| self.tensors.keys().any(|name| name.contains(part));
        if WRAPPERS.into_iter().any(has) {
            self.rename(|name| WRAPPERS.iter().fold(name.to_owned(), |name, part| name.replace(part, "")))?;
        }
        while self.all_start_with(DDP_PREFIX) {
            self.rename(|name| name[DDP_PREFIX.len()..].to_owned())?;
        }
        if self.tensors.keys().any(|name| name.contains(BASE_LAYER)) {
            self.rename(|name| name.strip_prefix(PEFT_PREFIX).unwrap_or(name).replacen(BASE_LAYER, ".", 1))?;
        }
        Ok(())
    }

    /// Whether there are tensors, and the names of all of them have this prefix.
    pub(super) fn all_start_with(&self, prefix: &str) -> bool {
        !self.tensors.is_empty() && self.tensors.keys().all(|name| name.starts_with(prefix))
    }

    /// Gives each tensor another name.
    pub(super) fn rename(&mut self, renamed: impl Fn(&str) -> String) -> Result<()> {
        let mut tensors = BTreeMap::new();
        for (name, entry) in std::mem::take(&mut self.tensors) {
            let renamed = renamed(&name);
            if tensors.insert(renamed.clone(), entry).is_some() {
                bail!(
                    "{}: tensor {name} and another one are both {renamed} without the names of wrappers such as torch.compile; save the \
                     model without them",
                    self.path.display()
                )
            }
        }
        self.tensors = tensors;
        Ok(())
    }

    /// Checks that there are no adapters beside the weights, whose scale is not known here.
    pub fn check_has_no_adapter(&self) -> Result<()> {
        match self.names().find(|name| name.contains(".lora_A.")) {
            None => Ok(()),
            Some(name) => bail!(
                "{} has the tensor {name} of an adapter beside its weights, but no adapter_config.json says how to merge it; merge it \
                 once with peft (merge_and_unload), or save the adapter with save_pretrained",
                self.path.display()
            ),
        }
    }
}
