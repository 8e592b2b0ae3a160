//! How files of weights are named, in a folder and in a repository, by transformers' names. Reads
//! nothing.

/// The formats of weights that are read, the better one first.
pub const FORMATS: [Format; 2] = [
    Format {
        index: "model.safetensors.index.json",
        single: "model.safetensors",
        extension: "safetensors",
        any_name: true,
    },
    Format {
        index: "pytorch_model.bin.index.json",
        single: "pytorch_model.bin",
        extension: "bin",
        any_name: false,
    },
];

/// Largest index; those of models of 10^12 parameters have 20 MB.
pub const MAX_INDEX_BYTES: u64 = 128 << 20;

/// Names of weight files.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Says which shard holds which tensor.
    pub index: &'static str,
    /// The file of a model without shards.
    pub single: &'static str,
    /// How names of shards end.
    pub extension: &'static str,
    /// Whether a file of another name is a weight file too. Other pickles are of trainers.
    any_name: bool,
}

impl Format {
    /// Whether a name ends as those of this format.
    pub fn ends(&self, name: &str) -> bool {
        name.strip_suffix(self.extension).is_some_and(|stem| stem.ends_with('.'))
    }

    /// Whether a file is one of weights where there is neither index nor single file. Those of
    /// adapters are not.
    pub fn is_loose(&self, name: &str) -> bool {
        self.any_name && self.ends(name) && !name.starts_with("adapter")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loose_files_are_safetensors_that_are_no_adapters() {
        let [safetensors, pickles] = FORMATS;
        assert!(safetensors.is_loose("other.safetensors"));
        for name in ["adapter_model.safetensors", "safetensors", "a.bin"] {
            assert!(!safetensors.is_loose(name), "{name}");
        }
        assert!(!pickles.is_loose("training_args.bin") && pickles.ends("training_args.bin"));
    }
}
