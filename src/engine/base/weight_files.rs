//! Names of weight files, in a folder and in a repository, by transformers' names and by
//! llama.cpp's. Reads no file.

use std::path::{Path, PathBuf};

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

/// Configs that some tools write beside config.json: how a checkpoint is quantized, and by which
/// method.
pub const QUANTIZATION_CONFIGS: [(&str, &str); 3] = [
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
    ("hf_quant_config.json", "modelopt"),
];

/// Where a model's folder has the configuration of its image processor: the file, and the key in
/// it. transformers 5 looks at them in this order.
pub const PROCESSOR_CONFIGS: [(&str, Option<&str>); 2] =
    [("processor_config.json", Some("image_processor")), ("preprocessor_config.json", None)];

/// Files of an adapter that PEFT writes.
pub const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Largest index; those of models of 10^12 parameters have 20 MB.
pub const MAX_INDEX_BYTES: u64 = 128 << 20;

/// Names of weight files.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Says which shard holds which tensor.
    pub index: &'static str,
    /// The file of a model without shards.
    pub single: &'static str,
    /// Ending of a shard's name.
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

/// Whether a model is a GGUF file; else it is a folder. Tools name these files in many ways, so
/// names do not count.
pub fn is_gguf_model(model: &Path) -> bool {
    model.is_file()
}

/// Most parts of a split GGUF file.
pub const MAX_GGUF_PARTS: usize = 1024;

/// All parts of a GGUF file, by the name of one: `m-00002-of-00003.gguf` has two more. A file of
/// another name is alone.
pub fn gguf_parts(path: &Path) -> Vec<PathBuf> {
    let split = || {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (stem, num_parts) = name.rsplit_once("-of-")?;
        let (stem, number) = stem.rsplit_once('-')?;
        let count = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
        let (number, num_parts): (usize, usize) = (count(number)?, count(num_parts)?);
        let name =
            |number| path.with_file_name(format!("{stem}-{number:05}-of-{num_parts:05}.gguf"));
        let is_one = (1..=num_parts).contains(&number) && num_parts <= MAX_GGUF_PARTS;
        is_one.then(|| (1..=num_parts).map(name).collect())
    };
    split().unwrap_or_else(|| vec![path.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_gguf_file_are_known_by_its_name() {
        let parts = |name: &str| {
            let parts = gguf_parts(&Path::new("dir").join(name)).into_iter();
            let names = parts.map(|path| path.strip_prefix("dir").unwrap().display().to_string());
            names.collect::<Vec<_>>()
        };
        let all = ["a-b-00001-of-00002.gguf", "a-b-00002-of-00002.gguf"];
        assert_eq!(parts(all[0]), all);
        assert_eq!(parts(all[1]), all);
        for alone in [
            "a.gguf",
            "a-1-of-2.gguf",
            "a-00003-of-00002.gguf",
            "a-00001-of-99999.gguf",
            "a-00001-of-00002.bin",
            "00001-of-00002.gguf",
        ] {
            assert_eq!(parts(alone), [alone]);
        }
    }

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
