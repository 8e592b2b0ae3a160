//! Modules whose weights a checkpoint holds quantized: found, checked against the config both
//! ways, and made matrices.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::mapped_files::{Entry, MappedFiles};
use crate::quantization::{
    Module, ModuleTensors, Need, Place, QuantizationConfig, Role, Scheme, StoredTensor,
};
use crate::spec::{
    ConnectorSpec, DecoderSpec, EncoderSpec, LayerSpec, Layout, LinearSpec, Part, SoundTowerSpec,
    TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};

/// Modules that the config quantizes.
#[derive(Debug, Default)]
pub(super) struct QuantizedModules {
    /// The format, for people to read; None: nothing is quantized.
    format: Option<String>,
    /// By the names that their weights would have.
    modules: HashMap<String, QuantizedModule>,
}

impl QuantizedModules {
    /// Adds a part of a layer, if the config quantizes it.
    ///
    /// # Errors
    /// The format has no such module.
    pub(super) fn add(
        &mut self,
        config: &QuantizationConfig,
        (linear, part): (&LinearSpec, &Part),
        module: &Module<'_>,
    ) -> Result<(), String> {
        let Some(scheme) = config.scheme(module)? else { return Ok(()) };
        let name = part.name.clone();
        let refuse = |text| format!("{name}: {text}");
        if linear.layout == Layout::Transposed {
            let text = "quantized matrices of (inputs, outputs) are not supported";
            return Err(refuse(text.to_owned()));
        }
        if self.modules.contains_key(&part.weight_name()) {
            // Another one of its matrices.
            return Ok(());
        }
        if part.slice.is_some() != scheme.holds_several() {
            let text = "experts in one tensor are not read in this format, or alone";
            return Err(refuse(text.to_owned()));
        }
        let count = part.slice.map_or(1, |slice| slice.count);
        let shape = (count * part.rows, linear.k);
        let mut needs = scheme.needs(shape).map_err(refuse)?;
        if part.slice.is_some() {
            let shapes = needs.iter_mut().flat_map(|need| &mut need.shapes);
            shapes.for_each(|shape| {
                shape.splice(..1, [count, part.rows]);
            });
        }
        if linear.bias {
            // The model asks for them itself.
            needs.retain(|need| need.suffixes != ["bias"]);
        }
        self.modules.insert(part.weight_name(), QuantizedModule { name, shape, scheme, needs });
        Ok(())
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QuantizedModule> {
        self.modules.values()
    }

    /// The module whose weight has this name, if it is quantized.
    pub(super) fn get(&self, weight: &str) -> Option<&QuantizedModule> {
        self.modules.get(weight)
    }
}

/// A module that the config quantizes.
#[derive(Debug)]
pub(super) struct QuantizedModule {
    /// As transformers calls it.
    pub name: String,
    /// (outputs, inputs)
    pub shape: (usize, usize),
    pub scheme: Arc<dyn Scheme>,
    pub needs: Vec<Need>,
}

/// Tensors that a quantized module has and a plain one has not.
const STORED: [&str; 2] = ["qweight", "weight_packed"];

/// Scales of keys and values, which the cache has not.
const OF_CACHE: [&str; 7] = [
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".q_scale",
    ".prob_scale",
    "k_proj.output_scale",
    "v_proj.output_scale",
];

/// Error of a tensor that should be quantized.
fn stored_plain(found: &str, format: &str) -> String {
    format!("{found} is stored as it is, but its config says {format}")
}

/// The name of a module's tensor.
fn with_suffix(module: &str, suffix: &str) -> String {
    match suffix.starts_with('_') {
        true => format!("{module}{suffix}"),
        false => format!("{module}.{suffix}"),
    }
}

/// The linear layers of a decoder. Tables and norms are never quantized.
pub fn linears_of_decoder(spec: &DecoderSpec) -> impl Iterator<Item = (&LinearSpec, Place)> {
    let projections = [&spec.embedding.projection, &spec.output.projection].into_iter().flatten();
    let elsewhere = projections.map(|linear| (linear, Place::Elsewhere));
    let head = spec.output.lm_head.iter().map(|linear| (linear, Place::Head));
    let layers = spec.layers.iter().flat_map(linears_of_layer);
    elsewhere.chain(head).chain(layers)
}

fn linears_of_layer(layer: &LayerSpec) -> impl Iterator<Item = (&LinearSpec, Place)> {
    let router = layer.experts().map(|experts| &experts.router);
    layer.linears().map(move |linear| match router {
        Some(router) if std::ptr::eq(router, linear) => (linear, Place::Router),
        _ => (linear, Place::Layer),
    })
}

/// The linear layers of a vision tower, without the one of its patches, which is a convolution.
pub fn linears_of_tower(spec: &TowerSpec) -> impl Iterator<Item = (&LinearSpec, Place)> {
    let layers = spec.layers.iter().flat_map(LayerSpec::linears);
    let connectors = spec.connectors().flat_map(ConnectorSpec::linears);
    layers.chain(connectors).map(|linear| (linear, Place::Tower))
}

/// The linear layers of a tower of sounds, without its convolutions.
pub fn linears_of_sound_tower(spec: &SoundTowerSpec) -> impl Iterator<Item = (&LinearSpec, Place)> {
    let of_connector = spec.connector().into_iter().flat_map(ConnectorSpec::linears);
    let of_layers = spec.layers.iter().flat_map(LayerSpec::linears);
    of_layers.chain(of_connector).map(|linear| (linear, Place::Tower))
}

/// The linear layers of an encoder, and the output layer of what was a decoder.
pub fn linears_of_encoder(spec: &EncoderSpec) -> impl Iterator<Item = (&LinearSpec, Place)> {
    let head = spec.output.iter().filter_map(|output| output.lm_head.as_ref());
    let layers = spec.layers.iter().flat_map(linears_of_layer);
    layers.chain(head.map(|linear| (linear, Place::Head)))
}

impl MappedFiles {
    /// Reads the modules that the config quantizes as its format stores them.
    ///
    /// # Errors
    /// The format has no such module.
    pub(super) fn quantize<'a>(
        &mut self,
        config: &QuantizationConfig,
        linears: impl Iterator<Item = (&'a LinearSpec, Place)>,
    ) -> Result<(), EngineError> {
        self.quantized.format = Some(config.description().to_owned());
        for (linear, place) in linears {
            for part in &linear.parts {
                let may_be_unnamed = matches!(place, Place::Router | Place::Tower);
                if may_be_unnamed && self.is_plain(&part.weight_name()) {
                    // Configs do not name what is no linear layer in the model's own code, as
                    // DeepSeek's routers, and those of tools that see decoders alone no tower.
                    continue;
                }
                let in_files = self.module_in_files(&part.name);
                let module = Module { names: [&part.name, &in_files], place };
                let added = self.quantized.add(config, (linear, part), &module);
                added.map_err(|text| self.error(text))?;
            }
        }
        Ok(())
    }

    /// Leaves scales of keys and values unused; how many there are.
    pub(super) fn leave_cache_scales(&mut self) -> usize {
        if self.quantized.format.is_none() {
            return 0;
        }
        let num_tensors = self.unused.len();
        self.unused.retain(|name| !OF_CACHE.iter().any(|ending| name.ends_with(ending)));
        num_tensors - self.unused.len()
    }

    /// Whether a module has a weight, in any format.
    pub(super) fn has_module(&self, name: &str) -> bool {
        let mut suffixes = ["weight"].into_iter().chain(STORED);
        suffixes.any(|suffix| self.has(&format!("{name}.{suffix}")))
    }

    /// Whether a weight is there as it is, and not quantized.
    fn is_plain(&self, weight: &str) -> bool {
        self.find(weight).is_some_and(|(_, entry)| entry.is_plain())
    }

    /// A module as the files call it.
    fn module_in_files(&self, name: &str) -> String {
        let suffixes = ["weight"].into_iter().chain(STORED);
        let found = suffixes.filter_map(|suffix| {
            let found = self.find(&format!("{name}.{suffix}"))?.0;
            found.strip_suffix(suffix)?.strip_suffix('.').map(str::to_owned)
        });
        found.into_iter().next().unwrap_or_else(|| name.to_owned())
    }

    /// The tensors of a module as the files call them, and what they are.
    ///
    /// # Errors
    /// One is missing, or has another type or shape; or the module is stored as it is.
    pub(super) fn tensors_of(
        &self,
        module: &QuantizedModule,
    ) -> Result<(Vec<String>, ModuleTensors<'_>), EngineError> {
        let (mut names, mut tensors) = (Vec::new(), Vec::new());
        for need in &module.needs {
            let mut suffixes = need.suffixes.iter();
            let found = suffixes.find_map(|suffix| {
                let (found, entry) = self.find(&with_suffix(&module.name, suffix))?;
                Some((*suffix, found, entry))
            });
            match found {
                Some((suffix, found, entry)) => {
                    let tensor = self.checked_stored(&found, entry, (need, &module.name))?;
                    names.push(found);
                    tensors.push((suffix, tensor));
                }
                None if need.role == Role::Required => return Err(self.missing(module, need)),
                None => {}
            }
        }
        Ok((names, ModuleTensors { name: module.name.clone(), tensors }))
    }

    /// A tensor of a quantized module that is as its format has it.
    fn checked_stored<'a>(
        &'a self,
        found: &str,
        entry: &Entry,
        (need, module): (&Need, &str),
    ) -> Result<StoredTensor<'a>, EngineError> {
        let format = self.quantized.format.as_deref().unwrap_or_default();
        let Some(dtype) = entry.dtype().filter(|dtype| need.dtypes.contains(dtype)) else {
            if entry.is_plain() && found.ends_with(".weight") {
                return Err(self.error(stored_plain(found, format)));
            }
            let asked: Vec<_> = need.dtypes.iter().map(ToString::to_string).collect();
            let dtype = entry.dtype().map_or("GGUF".to_owned(), |dtype| dtype.to_string());
            return Err(self.error(format!(
                "tensor {found} is of type {}, {format} of {module} asks for {}",
                dtype,
                asked.join(", ")
            )));
        };
        if !need.shapes.is_empty() && !need.shapes.contains(&entry.shape) {
            return Err(self.error(format!(
                "tensor {found} has shape {}, {format} of {module} asks for {:?}",
                quoted(&format!("{:?}", entry.shape)),
                need.shapes[0]
            )));
        }
        let bytes = self.bytes(entry);
        if need.role == Role::Zeros && bytes.iter().any(|byte| *byte != 0) {
            let text = format!("tensor {found} is not zero, and the model has none");
            return Err(self.error(text));
        }
        Ok(StoredTensor { dtype, bytes })
    }

    fn missing(&self, module: &QuantizedModule, need: &Need) -> EngineError {
        let QuantizedModule { name, .. } = module;
        let format = self.quantized.format.as_deref().unwrap_or_default();
        let plain = self.find(&format!("{name}.weight"));
        self.error(match plain.filter(|(_, entry)| entry.is_plain()) {
            Some((found, _)) => stored_plain(&found, format),
            None => format!(
                "tensor {} is missing from the weight files ({format}); are all shards there?",
                with_suffix(name, need.suffixes[0])
            ),
        })
    }

    /// Why a tensor that should be plain is not: the module is stored quantized.
    pub(super) fn stored_quantized(&self, name: &str) -> Option<String> {
        let module = name.strip_suffix(".weight")?;
        let (found, _) =
            STORED.iter().find_map(|suffix| self.find(&format!("{module}.{suffix}")))?;
        Some(self.left_out(&format!("{found} is stored quantized")))
    }

    /// Why a tensor that should be plain has a type that weights have not.
    pub(super) fn of_other_type(&self, found: &str, dtype: Dtype) -> String {
        match dtype {
            Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::I8 | Dtype::U8 => {
                self.left_out(&format!("tensor {found} is quantized, of type {dtype}"))
            }
            _ => format!("tensor {found} is of type {dtype}; weights are F32, BF16 or F16"),
        }
    }

    fn left_out(&self, what: &str) -> String {
        match &self.quantized.format {
            Some(format) => format!("{what}, but its config ({format}) leaves it as it is"),
            None => format!("{what}, but config.json has no `quantization_config`"),
        }
    }

    /// The matrix of a module.
    ///
    /// # Errors
    /// As `tensors_of`, or a tensor has a value that the format has not.
    pub(super) fn quantized_matrix(
        &self,
        module: &QuantizedModule,
    ) -> Result<SourceMatrix<'_>, EngineError> {
        let (_, tensors) = self.tensors_of(module)?;
        let matrix = module.scheme.matrix(module.shape, &tensors);
        let matrix = matrix.map_err(|text| self.error(text))?;
        let (num_rows, num_columns) = module.shape;
        Ok(SourceMatrix::new(num_rows, num_columns, SourceValues::Quantized(matrix)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf_config::HfConfig;

    #[test]
    fn routers_are_known_in_decoders_and_in_encoders_that_were_decoders() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/golden/qwen3_moe");
        let text = std::fs::read_to_string(format!("{path}/config.json")).unwrap();
        let decoder = crate::decoder_spec(&HfConfig::parse(&text, "config.json").unwrap()).unwrap();
        let num_routers = decoder.experts().count();
        let routers =
            |places: Vec<Place>| places.into_iter().filter(|place| *place == Place::Router).count();
        let of_decoder = linears_of_decoder(&decoder).map(|(_, place)| place).collect();
        assert!(num_routers > 0 && routers(of_decoder) == num_routers);
        let encoder = EncoderSpec::of_decoder(decoder, true).unwrap();
        let of_encoder = linears_of_encoder(&encoder).map(|(_, place)| place).collect();
        assert_eq!(routers(of_encoder), num_routers);
    }
}
