//! Tensors of an adapter's file, by their names as peft writes them.

/// Prefix of the names of the base's modules.
const PREFIX: &str = "base_model.model.";

/// Role of a tensor in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A of a linear layer: (rank, inputs).
    A,
    /// B of a linear layer: (outputs, rank).
    B,
    /// A of a table: (rank, rows).
    EmbeddingA,
    /// B of a table: (width, rank).
    EmbeddingB,
    /// The weight of a module that is saved whole.
    Weight,
    /// Bias of the module.
    Bias,
    /// The base's own weight, which peft writes beside the adapter of a table.
    Base,
}

/// A tensor's name, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorName<'a> {
    /// As transformers names the module.
    pub module: &'a str,
    pub role: Role,
    /// Name of the adapter; `None`: the tensor's name has none.
    pub adapter: Option<&'a str>,
}

impl<'a> TensorName<'a> {
    /// Takes a name apart; `heads` may be there whole.
    ///
    /// # Errors
    /// It is none of an adapter that is computed; the text says why.
    pub(super) fn parse(name: &'a str, heads: &[&str]) -> Result<Self, String> {
        let Some(path) = name.strip_prefix(PREFIX) else {
            return Err(format!("its name does not begin with {PREFIX}, as peft's do"));
        };
        let lora = [
            (".lora_A", ".weight", Role::A),
            (".lora_B", ".weight", Role::B),
            (".lora_embedding_A", "", Role::EmbeddingA),
            (".lora_embedding_B", "", Role::EmbeddingB),
        ];
        for (marker, ending, role) in lora {
            let Some((module, rest)) = path.rsplit_once(marker) else { continue };
            let Some(adapter) = rest.strip_suffix(ending) else { continue };
            match adapter.strip_prefix('.') {
                None if adapter.is_empty() => return Ok(Self { module, role, adapter: None }),
                Some(adapter) if !adapter.contains('.') => {
                    return Ok(Self { module, role, adapter: Some(adapter) });
                }
                _ => {}
            }
        }
        if let Some(module) = path.strip_suffix(".base_layer.weight") {
            return Ok(Self { module, role: Role::Base, adapter: None });
        }
        for (ending, role) in [(".weight", Role::Weight), (".bias", Role::Bias)] {
            let module = path.strip_suffix(ending);
            let of_head = |module: &&str| module.split('.').any(|part| heads.contains(&part));
            if let Some(module) = module.filter(of_head) {
                return Ok(Self { module, role, adapter: None });
            }
        }
        Err(not_computed(path).to_owned())
    }
}

/// Why a tensor has no part in an adapter.
fn not_computed(path: &str) -> &'static str {
    match path {
        _ if path.contains(".lora_magnitude_vector") => {
            "it is a magnitude of DoRA, which is not supported"
        }
        _ if path.contains(".lora_B") => "it is a bias of B, which is not supported",
        _ if path.ends_with("embed_tokens.weight") || path.ends_with("lm_head.weight") => {
            "it is a whole table, as with tokens that were added; whole weights are read of the \
             heads of classifiers alone"
        }
        _ => {
            "an adapter has lora_A and lora_B of modules, and whole weights of those heads of \
             classifiers that `modules_to_save` names"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> Option<(&str, Role, Option<&str>)> {
        let name = TensorName::parse(name, &["score"]).ok()?;
        Some((name.module, name.role, name.adapter))
    }

    #[test]
    fn names_are_taken_apart() {
        let (module, table) = ("model.layers.0.self_attn.q_proj", "model.embed_tokens");
        for (end, role, adapter) in [
            ("lora_A.weight", Role::A, None),
            ("lora_B.weight", Role::B, None),
            ("lora_A.default.weight", Role::A, Some("default")),
        ] {
            let name = format!("base_model.model.{module}.{end}");
            assert_eq!(parsed(&name), Some((module, role, adapter)));
        }
        for (end, role, adapter) in [
            ("lora_embedding_A", Role::EmbeddingA, None),
            ("lora_embedding_B", Role::EmbeddingB, None),
            ("lora_embedding_B.mine", Role::EmbeddingB, Some("mine")),
            ("base_layer.weight", Role::Base, None),
        ] {
            let name = format!("base_model.model.{table}.{end}");
            assert_eq!(parsed(&name), Some((table, role, adapter)));
        }
        let of_head = [
            ("score.weight", "score", Role::Weight),
            ("score.bias", "score", Role::Bias),
            ("score.dense.weight", "score.dense", Role::Weight),
        ];
        for (end, module, role) in of_head {
            let name = format!("base_model.model.{end}");
            assert_eq!(parsed(&name), Some((module, role, None)));
        }
    }

    #[test]
    fn other_names_are_refused_with_a_reason() {
        for (name, why) in [
            ("model.q.lora_A.weight", "does not begin with"),
            ("base_model.model.q.lora_magnitude_vector", "DoRA"),
            ("base_model.model.q.lora_B.bias", "bias of B"),
            ("base_model.model.q.lora_A.a.b.weight", "lora_A and lora_B"),
            ("base_model.model.model.embed_tokens.weight", "tokens that were added"),
            ("base_model.model.classifier.weight", "`modules_to_save` names"),
            ("base_model.model.q.weight", "`modules_to_save` names"),
        ] {
            let error = TensorName::parse(name, &["score"]).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
    }
}
