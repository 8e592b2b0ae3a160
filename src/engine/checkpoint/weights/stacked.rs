//! Experts of a layer that a file has in two tensors, taken apart.

use super::mapped_files::{Entry, MappedFiles};
use crate::spec::Part;

/// (a matrix of an expert, the tensor that has it of all experts, what that has of each)
const STACKS: [(&str, &str, &[&str]); 3] = [
    ("gate_proj", "gate_up_proj", &["gate_proj", "up_proj"]),
    // Of experts without gates.
    ("up_proj", "up_proj", &["up_proj"]),
    ("down_proj", "down_proj", &["down_proj"]),
];

impl MappedFiles {
    /// Where the model asks for `experts.0.gate_proj.weight` and its like, and the files have
    /// `experts.gate_up_proj` (experts, 2 * inner, hidden), that becomes a tensor of each expert's
    /// gate and of its up; and so `experts.down_proj` (experts, hidden, inner). transformers keeps
    /// them so in memory, and Qwen3.5's files have them so. Those of Qwen3-VL are transposed, which
    /// their shape shows; one that fits both ways is not, as in transformers.
    pub(super) fn unstack<'a>(&mut self, asked: impl Iterator<Item = &'a Part>) {
        for part in asked.filter(|part| part.slice.is_none()) {
            for (matrix, stack, names) in STACKS {
                let first = format!(".0.{matrix}");
                let experts = part.name.strip_suffix(&first).filter(|n| n.ends_with(".experts"));
                let is_there = |_: &&str| self.has(&part.weight_name());
                if let Some(experts) = experts.filter(|name| !is_there(name)) {
                    self.take_apart(&format!("{experts}.{stack}"), (names, part.rows));
                }
            }
        }
    }

    /// A tensor of (experts, rows, columns), or (experts, columns, rows), becomes as many of each
    /// expert as there are names, which should have so many rows.
    fn take_apart(&mut self, stack: &str, (names, rows_of_one): (&[&str], usize)) {
        let Some((found, entry)) = self.find(stack) else { return };
        let &[_, rows, columns] = &entry.shape[..] else { return };
        let num = names.len();
        let pieces: Option<Vec<Entry>> =
            match rows != num * rows_of_one && columns == num * rows_of_one {
                true => entry.transposed_pieces([rows_of_one, rows], num).map(Iterator::collect),
                false => {
                    let pieces = entry.pieces(&[rows / num, columns]);
                    pieces.filter(|_| rows.is_multiple_of(num)).map(Iterator::collect)
                }
            };
        let Some(pieces) = pieces else { return };
        self.tensors.remove(&found);
        self.unused.remove(&found);
        let experts = found.rsplit_once('.').map_or("", |(experts, _)| experts);
        for (index, piece) in pieces.into_iter().enumerate() {
            let (expert, matrix) = (index / names.len(), names[index % names.len()]);
            let name = format!("{experts}.{expert}.{matrix}.weight");
            self.unused.insert(name.clone());
            self.tensors.insert(name, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use crate::quantization::Place;
    use crate::spec::{ExpertSpec, LinearSpec, NamedShape};
    use crate::weights::Checkpoint;

    /// Two experts of a layer in files with these tensors; values count from 0 in each tensor.
    fn checkpoint(tensors: &[(&str, &[usize])]) -> (tempfile::TempDir, Checkpoint) {
        checkpoint_of(&experts(), tensors)
    }

    fn checkpoint_of(
        experts: &[ExpertSpec],
        tensors: &[(&str, &[usize])],
    ) -> (tempfile::TempDir, Checkpoint) {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |shape: &[usize]| {
            (0..shape.iter().product::<usize>() as u16)
                .flat_map(|i| f32::from(i).to_le_bytes())
                .collect::<Vec<_>>()
        };
        let data: Vec<_> = tensors.iter().map(|(_, shape)| bytes(shape)).collect();
        let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
            (*name, TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let linears = experts.iter().flat_map(|expert| [&expert.up, &expert.down]);
        let linears = linears.map(|linear| (linear, Place::Layer));
        let checkpoint = Checkpoint::open(folder.path(), None).unwrap();
        let checkpoint = checkpoint.quantized(None, linears).unwrap();
        (folder, checkpoint)
    }

    fn experts() -> Vec<ExpertSpec> {
        let name = |index: usize, part: &str| format!("model.mlp.experts.{index}.{part}_proj");
        let of = |index| ["gate", "up", "down"].map(|part| name(index, part));
        (0..2).map(|index| ExpertSpec::new(of(index), 2, 3)).collect()
    }

    fn asked() -> Vec<NamedShape> {
        let experts = experts();
        let linears = experts.iter().flat_map(|expert| [&expert.up, &expert.down]);
        linears.flat_map(LinearSpec::weights).collect()
    }

    #[test]
    fn each_expert_is_taken_from_its_place() {
        let (up, down) = ("model.language_model.mlp.experts.gate_up_proj", "mlp.experts.down_proj");
        let (_folder, mut checkpoint) = checkpoint(&[(up, &[2, 6, 2]), (down, &[2, 2, 3])]);
        checkpoint.check(&asked(), &[]).unwrap();
        let first = |tensor| checkpoint.matrix(&tensor).unwrap().to_vec()[0];
        let firsts = asked().into_iter().map(first);
        assert_eq!(firsts.collect::<Vec<_>>(), [0.0, 6.0, 0.0, 12.0, 18.0, 6.0]);
        checkpoint.finish().unwrap();
    }

    #[test]
    fn transposed_experts_are_turned() {
        let (up, down) = ("model.mlp.experts.gate_up_proj", "model.mlp.experts.down_proj");
        let (_folder, mut checkpoint) = checkpoint(&[(up, &[2, 2, 6]), (down, &[2, 3, 2])]);
        checkpoint.check(&asked(), &[]).unwrap();
        let values = asked().into_iter().map(|tensor| checkpoint.matrix(&tensor).unwrap().to_vec());
        let values: Vec<_> = values.collect();
        assert_eq!(values[0], [0.0, 6.0, 1.0, 7.0, 2.0, 8.0]);
        assert_eq!(values[1], [3.0, 9.0, 4.0, 10.0, 5.0, 11.0]);
        assert_eq!(values[2], [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        assert_eq!(values[4], [15.0, 21.0, 16.0, 22.0, 17.0, 23.0]);
        checkpoint.finish().unwrap();
    }

    #[test]
    fn experts_without_gates_have_a_stack_of_ups() {
        let of = |index| ["up", "down"].map(|part| format!("mixer.experts.{index}.{part}_proj"));
        let experts: Vec<_> = (0..2).map(|index| ExpertSpec::plain(of(index), 2, 3)).collect();
        let (up, down) = ("mixer.experts.up_proj", "mixer.experts.down_proj");
        let (_folder, mut checkpoint) =
            checkpoint_of(&experts, &[(up, &[2, 3, 2]), (down, &[2, 2, 3])]);
        let linears = experts.iter().flat_map(|expert| [&expert.up, &expert.down]);
        let asked: Vec<_> = linears.flat_map(LinearSpec::weights).collect();
        checkpoint.check(&asked, &[]).unwrap();
        let first = |tensor| checkpoint.matrix(&tensor).unwrap().to_vec()[0];
        let firsts = asked.into_iter().map(first);
        assert_eq!(firsts.collect::<Vec<_>>(), [0.0, 0.0, 6.0, 6.0]);
        checkpoint.finish().unwrap();
    }

    #[test]
    fn experts_too_many_or_of_another_shape_are_refused() {
        let (up, down) = ("model.mlp.experts.gate_up_proj", "model.mlp.experts.down_proj");
        for (tensors, what) in [
            ([(up, &[3, 6, 2][..]), (down, &[2, 2, 3])], "2 tensors are in the weight files but"),
            ([(up, &[2, 8, 2][..]), (down, &[2, 2, 3])], "experts.0.gate_proj.weight has shape"),
            ([(up, &[2, 7, 2][..]), (down, &[2, 2, 3])], "gate_proj.weight is missing"),
            ([(up, &[12, 2][..]), (down, &[2, 2, 3])], "gate_proj.weight is missing"),
            ([(up, &[2, 6, 2][..]), (down, &[1, 2, 3])], "experts.1.down_proj.weight is missing"),
        ] {
            let (_folder, checkpoint) = checkpoint(&tensors);
            let error = checkpoint.check(&asked(), &[]).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
