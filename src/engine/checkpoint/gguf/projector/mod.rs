//! A projector (llama.cpp's mmproj) beside a text model: two GGUF files in the words of one folder
//! that sees. What its header does not say is as published models of its kind have it.

mod clip;
mod families;
mod gemma4;
mod names;
mod pixtral;
mod processor;
mod qwen;
mod sizes;

use serde_json::{Map, Value, json};

use super::keys::Keys;
use super::{Described, Translation};
use crate::encoders::GGUF_POOLING;
use crate::families::vision::text_type;
use families::FAMILIES;
pub use names::ProjectorNames;
pub use processor::ImageProcessorConfig;
use vllm_batch_base::files::quoted;

/// Its architecture.
pub(super) const ARCH: &str = "clip";

/// Two files in the words of a folder.
#[derive(Clone, Debug)]
pub(super) struct Seeing {
    /// What its config.json would say.
    pub config: Map<String, Value>,
    /// What its preprocessor_config.json would say.
    pub processor: ImageProcessorConfig,
    /// Tensors of the projector's file.
    pub names: ProjectorNames,
}

/// Whether a file is a projector, by what it says of itself.
pub(super) fn is_projector(described: &Described) -> bool {
    let says = |key: &str, text: &str| described.metadata.text(key) == Ok(Some(text));
    says("general.type", "mmproj") || says("general.architecture", ARCH)
}

/// A model that sees, of what a text model and a projector say.
///
/// # Errors
/// The projector is of no kind that is supported, or does not go with the text model.
pub(super) fn combine(
    text: &Described,
    translation: &Translation,
    projector: &Described,
) -> Result<Seeing, String> {
    if !is_projector(projector) {
        let arch = projector.metadata.text("general.architecture")?.unwrap_or("none");
        return Err(format!(
            "it is no projector: its architecture is {}; help: give the mmproj file that belongs \
             to the model",
            quoted(arch)
        ));
    }
    let mut sight = Sight::new(text, translation, projector)?;
    let kind = sight.kind()?;
    let family = FAMILIES.iter().find(|family| family.projector == kind).ok_or_else(|| {
        let known: Vec<_> = FAMILIES.iter().map(|family| family.projector).collect();
        format!(
            "a projector of type {} is not supported; these are: {}",
            quoted(kind),
            known.join(", ")
        )
    })?;
    let in_kind = |text: String| format!("projector {kind}: {text}");
    let class = family.class(sight.text_arch).map_err(in_kind)?;
    (family.build)(&mut sight).map_err(in_kind)?;
    sight.finish(class).map_err(in_kind)
}

/// A model that sees, in the making.
pub(super) struct Sight<'a> {
    /// The projector's.
    pub keys: Keys<'a>,
    /// The text model's file.
    text: &'a Described,
    /// What it is called in GGUF files, and its class.
    text_arch: &'a str,
    text_class: &'a str,
    /// The top of config.json, its text part and its `vision_config`.
    pub root: Map<String, Value>,
    pub text_config: Map<String, Value>,
    pub vision: Map<String, Value>,
    pub processor: ImageProcessorConfig,
    pub names: ProjectorNames,
    /// Another class than that of its kind.
    pub class: Option<&'static str>,
}

impl<'a> Sight<'a> {
    fn new(
        text: &'a Described,
        translation: &'a Translation,
        projector: &'a Described,
    ) -> Result<Self, String> {
        let mut text_config = translation.config.clone();
        let mut root = Map::new();
        for key in ["dtype", "eos_token_id", GGUF_POOLING] {
            root.extend(text_config.remove(key).map(|value| (key.to_owned(), value)));
        }
        text_config.remove("architectures");
        let classes = translation.config.get("architectures");
        let text_class = classes.and_then(|classes| classes.get(0)?.as_str()).unwrap_or_default();
        let text_arch = text.metadata.text("general.architecture")?.unwrap_or_default();
        Ok(Self {
            keys: Keys::new(projector, ARCH),
            text,
            text_arch,
            text_class,
            root,
            text_config,
            vision: Map::new(),
            processor: ImageProcessorConfig::default(),
            names: ProjectorNames::default(),
            class: None,
        })
    }

    /// The kind of the projector.
    fn kind(&self) -> Result<&'a str, String> {
        let keys = &self.keys;
        // What was said before there were types.
        keys.ignore(&["has_llava_projector", "has_qwen2vl_merger", "has_minicpmv_projector"]);
        if keys.flag("has_gen_audio_encoder")? == Some(true) {
            return Err("a projector that makes sounds is not supported".to_owned());
        }
        // Sounds are left out: no row has any.
        if keys.flag("has_audio_encoder")? == Some(true) {
            keys.ignore_all("audio.");
        }
        if keys.flag("has_text_encoder")? == Some(true)
            || keys.flag("has_vision_encoder")? != Some(true)
        {
            return Err("it makes no embeddings of images for a language model".to_owned());
        }
        let of_vision = keys.text("vision.projector_type")?;
        let kind = keys.text("projector_type")?.or(of_vision);
        kind.ok_or_else(|| "`clip.projector_type` is missing".to_owned())
    }

    /// Refuses a projector of another model, which makes embeddings of so many values.
    pub(super) fn check_width(&self, made: u64) -> Result<(), String> {
        let wanted = self.width()?;
        match made == wanted {
            true => Ok(()),
            false => Err(format!(
                "it makes embeddings of {made} values, and those of the model have {wanted}; \
                 help: give the mmproj file that belongs to the model"
            )),
        }
    }

    /// The same of one whose last product has this name, where the header does not say.
    pub(super) fn check_product(&self, tensor: &str) -> Result<(), String> {
        match self.keys.optional_size("vision.projection_dim")? {
            Some(made) => self.check_width(made),
            None => self.check_width(self.rows(tensor)?),
        }
    }

    /// Values of the text model's embeddings.
    pub(super) fn width(&self) -> Result<u64, String> {
        let width = self.text_config.get("hidden_size").and_then(Value::as_u64);
        width.ok_or_else(|| "the model has no width".to_owned())
    }

    /// The id of the first of these tokens that the text model has.
    pub(super) fn token(&self, texts: &[&str]) -> Result<u64, String> {
        let tokens = self.text.metadata.texts("tokenizer.ggml.tokens")?;
        let id = |text: &&str| Some(tokens?.iter().position(|token| token == *text)? as u64);
        texts.iter().find_map(id).ok_or_else(|| {
            format!("the model's file has no token {}, which images need", quoted(texts[0]))
        })
    }

    /// Says that positions of tokens have axes, of as many frequencies as the text model's file
    /// has.
    pub(super) fn set_axes(&mut self, by_turns: bool) -> Result<(), String> {
        let key = format!("{}.rope.dimension_sections", self.text_arch);
        let Some(sections) = self.text.metadata.numbers(&key)? else { return Ok(()) };
        let sections: Option<Vec<u64>> = sections.iter().map(|n| n.as_unsigned()).collect();
        let sections = match sections.as_deref() {
            Some([t, h, w] | [t, h, w, 0]) => [*t, *h, *w],
            _ => return Err(format!("{} is not three counts", quoted(&key))),
        };
        let plain = || json!({"rope_type": "default"});
        let scaling = self.text_config.entry("rope_scaling").or_insert_with(plain);
        let Value::Object(scaling) = scaling else { return Ok(()) };
        scaling.insert("mrope_section".to_owned(), json!(sections));
        if by_turns {
            scaling.insert("mrope_interleaved".to_owned(), json!(true));
        }
        Ok(())
    }

    /// The text part says its type, where its class has texts of several families.
    pub(super) fn set_text_type(&mut self) -> Result<(), String> {
        let name = text_type(self.text_class).ok_or_else(|| {
            format!("a text model of architecture {} is not supported", quoted(self.text_arch))
        })?;
        self.text_config.insert("model_type".to_owned(), json!(name));
        Ok(())
    }

    /// The token that texts are filled up with.
    pub(super) fn padding_id(&self) -> Result<Option<u64>, String> {
        self.text.metadata.unsigned("tokenizer.ggml.padding_token_id")
    }

    /// What the text model is called in GGUF files.
    pub(super) fn text_arch(&self) -> &str {
        self.text_arch
    }

    /// A number of the text model's file, by its architecture's key.
    pub(super) fn text_number(&self, key: &str) -> Option<u64> {
        self.text.metadata.get(&format!("{}.{key}", self.text_arch))?.as_unsigned()
    }

    fn finish(mut self, class: &str) -> Result<Seeing, String> {
        self.keys.refuse_unread()?;
        self.root.insert("architectures".to_owned(), json!([self.class.unwrap_or(class)]));
        self.root.insert("text_config".to_owned(), Value::Object(self.text_config));
        self.root.insert("vision_config".to_owned(), Value::Object(self.vision));
        let Self { root, processor, names, .. } = self;
        Ok(Seeing { config: root, processor, names })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::weights::gguf::written::{Written, text};
    use super::super::super::weights::gguf::{GgmlType, Gguf, Piece, TensorInfo};
    use super::*;

    const U32: u32 = 4;
    const F32: u32 = 6;
    const BOOL: u32 = 7;
    const TEXT: u32 = 8;

    fn described(written: &Written) -> Described {
        let Gguf { metadata, tensors } = Gguf::parse(&written.bytes()).unwrap();
        let shapes = tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
        Described { metadata: metadata.into(), shapes, ..Described::default() }
    }

    /// A text model of width 32.
    fn text_model(arch: &str) -> Described {
        let key = |name: &str| format!("{arch}.{name}");
        let mut written = Written::new().key("general.architecture", TEXT, &text(arch));
        for (name, size) in [
            ("block_count", 1u32),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 48),
            ("attention.head_count", 4),
        ] {
            written = written.key(&key(name), U32, &size.to_le_bytes());
        }
        let eps = key("attention.layer_norm_rms_epsilon");
        written = written.key(&eps, F32, &1e-5f32.to_le_bytes());
        let tokens = ["a", "<image>", "b"].map(text);
        let written = written.array("tokenizer.ggml.tokens", TEXT, &tokens);
        described(&written.tensor("token_embd.weight", &[3, 32], GgmlType::F32, &[0; 384]))
    }

    /// SmolVLM's projector of width 16, whose MLPs have this width.
    fn projector(inner: u64, is_old: bool, more: impl Fn(Written) -> Written) -> Described {
        let mut written = Written::new()
            .key("general.architecture", TEXT, &text("clip"))
            .key("clip.has_vision_encoder", BOOL, &[1])
            .key("clip.projector_type", TEXT, &text("idefics3"))
            .key("clip.use_gelu", BOOL, &[1])
            .key("clip.vision.attention.layer_norm_epsilon", F32, &1e-6f32.to_le_bytes());
        for (name, size) in [
            ("block_count", 1u32),
            ("attention.head_count", 2),
            ("embedding_length", 16),
            ("feed_forward_length", 24),
            ("patch_size", 2),
            ("image_size", 8),
            ("projection_dim", 32),
        ] {
            written = written.key(&format!("clip.vision.{name}"), U32, &size.to_le_bytes());
        }
        let halves = [0.5f32, 0.5, 0.25].map(|number| number.to_le_bytes().to_vec());
        written = written.array("clip.vision.image_mean", F32, &halves);
        written = written.array("clip.vision.image_std", F32, &halves);
        let shape = if is_old { [16, inner] } else { [inner, 16] };
        let bytes = vec![0; 4 * 16 * inner as usize];
        described(&more(written.tensor("v.blk.0.ffn_up.weight", &shape, GgmlType::F32, &bytes)))
    }

    fn combined(projector: &Described) -> Result<Seeing, String> {
        let model = text_model("llama");
        combine(&model, &model.translate().unwrap(), projector)
    }

    #[test]
    fn a_header_is_a_vision_config_and_a_processor() {
        let Seeing { config, processor, .. } = combined(&projector(24, false, |w| w)).unwrap();
        let config = Value::Object(config);
        for (key, value) in [
            ("/architectures/0", json!("Idefics3ForConditionalGeneration")),
            ("/text_config/model_type", json!("llama")),
            ("/text_config/hidden_size", json!(32)),
            ("/vision_config/hidden_size", json!(16)),
            ("/vision_config/intermediate_size", json!(24)),
            ("/vision_config/layer_norm_eps", json!(1e-6)),
            ("/image_token_id", json!(1)),
            ("/dtype", json!("bfloat16")),
        ] {
            assert_eq!(config.pointer(key), Some(&value), "{key}");
        }
        assert_eq!(processor.keys["image_mean"], json!([0.5, 0.5, 0.25]));
        // Four tiles beside each other.
        assert_eq!(processor.keys["size"], json!({"longest_edge": 32}));
    }

    #[test]
    fn old_files_call_the_products_of_an_mlp_by_each_others_names() {
        for (is_old, name) in [(false, "mlp.fc1.weight"), (true, "mlp.fc2.weight")] {
            let names = combined(&projector(24, is_old, |w| w)).unwrap().names;
            let (name_of_file, range) = ("v.blk.0.ffn_up.weight".to_owned(), 0..0);
            let tensor =
                TensorInfo { name: name_of_file, ty: GgmlType::F32, shape: vec![1], range };
            let found = names.translate(&tensor).unwrap();
            assert!(found[0].name.ends_with(name), "{}", found[0].name);
        }
    }

    #[test]
    fn q_k_and_v_are_pieces_of_one_and_so_are_frames() {
        let names = ProjectorNames {
            outer: &[("v.patch_embd", "patches")],
            layers: "layers",
            qkv: Some(("qkv", 4)),
            frames: Some(vec![4, 3, 2, 5, 5]),
            ..ProjectorNames::default()
        };
        let found = |name: &str, shape: &[usize]| {
            let (name, ty) = (name.to_owned(), GgmlType::F32);
            let tensor = TensorInfo { name, ty, shape: shape.to_vec(), range: 0..0 };
            let found = names.translate(&tensor).unwrap().remove(0);
            (found.name, found.piece.unwrap())
        };
        let piece =
            |index, count, shape: &[usize], run| Piece { index, count, shape: shape.to_vec(), run };
        let (name, found_piece) = found("v.blk.2.attn_v.bias", &[4]);
        assert_eq!((&name[..], found_piece), ("layers.2.qkv.bias", piece(2, 3, &[12], None)));
        let (name, found_piece) = found("v.patch_embd.weight.1", &[4, 3, 5, 5]);
        let expected = piece(1, 2, &[4, 3, 2, 5, 5], Some(25));
        assert_eq!((&name[..], found_piece), ("patches.weight", expected));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refused = |projector: &Described, wanted: &str| {
            let error = combined(projector).unwrap_err();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        };
        let with = |name: &'static str, id, value: Vec<u8>| {
            projector(24, false, move |written| written.key(name, id, &value))
        };
        refused(&with("clip.vision.wonder", U32, vec![0; 4]), "`clip.vision.wonder` is not known");
        refused(&with("clip.has_gen_audio_encoder", BOOL, vec![1]), "makes sounds");
        refused(&with("clip.has_text_encoder", BOOL, vec![1]), "no embeddings of images for");
        let heads = 3u32.to_le_bytes().to_vec();
        refused(&with("clip.vision.attention.head_count_kv", U32, heads), "head_count_kv");
        refused(&text_model("llama"), "it is no projector: its architecture is `llama`");
        let other = Written::new()
            .key("general.architecture", TEXT, &text("clip"))
            .key("clip.has_vision_encoder", BOOL, &[1])
            .key("clip.projector_type", TEXT, &text("ldp"));
        refused(&described(&other), "type `ldp` is not supported; these are: exaone4_5,");
        let names = combined(&projector(24, false, |w| w)).unwrap().names;
        let (name, range) = ("v.blk.0.wonder.weight".to_owned(), 0..0);
        let tensor = TensorInfo { name, ty: GgmlType::F32, shape: vec![1], range };
        assert!(names.translate(&tensor).unwrap_err().contains("`v.blk.0.wonder.weight` is none"));
    }
}
