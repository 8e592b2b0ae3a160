//! What a tokenizer puts around two texts that a model reads together, and how they are cut.

use tokenizers::pipeline::{PipelineToken, Template};

/// `prefix FIRST infix SECOND suffix`, with the type (segment) of every token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTemplate {
    /// Ids and types.
    prefix: Vec<(u32, u32)>,
    infix: Vec<(u32, u32)>,
    suffix: Vec<(u32, u32)>,
    /// Types of the two texts.
    types: [u32; 2],
}

impl PairTemplate {
    /// That of a tokenizer's post-processor.
    pub(super) fn new(template: &Template) -> Self {
        let run = |run: &[(PipelineToken, u8)]| {
            run.iter().map(|(token, kind)| (token.id(), u32::from(*kind))).collect()
        };
        Self {
            prefix: run(&template.prefix),
            infix: run(&template.infix),
            suffix: run(&template.suffix),
            types: [template.a_type_id, template.b_type_id.unwrap_or(0)].map(u32::from),
        }
    }

    /// Tokens that it adds.
    pub fn num_special(&self) -> usize {
        self.prefix.len() + self.infix.len() + self.suffix.len()
    }

    /// The ids of two texts, and the type of each. With `add_special_tokens` what stands around
    /// them is there too.
    pub fn join(
        &self,
        [first, second]: [&[u32]; 2],
        add_special_tokens: bool,
    ) -> (Vec<u32>, Vec<u32>) {
        let around = |run: &[(u32, u32)]| if add_special_tokens { run.to_vec() } else { vec![] };
        let of_text = |ids: &[u32], kind: u32| ids.iter().map(|id| (*id, kind)).collect::<Vec<_>>();
        let [first_type, second_type] = self.types;
        [
            around(&self.prefix),
            of_text(first, first_type),
            around(&self.infix),
            of_text(second, second_type),
            around(&self.suffix),
        ]
        .into_iter()
        .flatten()
        .unzip()
    }
}

/// How many tokens of two texts stay, where they have room for `room` together: the longer one is
/// cut first. As the `longest_first` of Hugging Face tokenizers, the odd token included.
pub fn longest_first([first, second]: [usize; 2], room: usize) -> [usize; 2] {
    if first + second <= room {
        return [first, second];
    }
    let (short, is_swapped) = (first.min(second), first > second);
    let lengths = match short.max(room.saturating_sub(short)) {
        long if short + long <= room => [short, long],
        _ => [room / 2, room / 2 + room % 2],
    };
    let [short, long] = lengths;
    if is_swapped { [long, short] } else { lengths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_get_their_types_and_what_stands_around_them() {
        let template = PairTemplate {
            prefix: vec![(101, 0)],
            infix: vec![(102, 0)],
            suffix: vec![(102, 1)],
            types: [0, 1],
        };
        let (ids, types) = template.join([&[5, 6], &[7]], true);
        assert_eq!(ids, [101, 5, 6, 102, 7, 102]);
        assert_eq!(types, [0, 0, 0, 0, 1, 1]);
        let (ids, types) = template.join([&[5], &[7, 8]], false);
        assert_eq!((ids, types), (vec![5, 7, 8], vec![0, 1, 1]));
        assert_eq!(template.num_special(), 3);
    }

    #[test]
    fn the_longer_text_is_cut_first() {
        // By the Python package `tokenizers`; its `max_length` has the special tokens too.
        for (lengths, room, expected) in [
            ([3, 4], 7, [3, 4]),
            ([3, 9], 7, [3, 4]),
            ([9, 3], 7, [4, 3]),
            ([9, 9], 7, [3, 4]),
            ([10, 9], 7, [4, 3]),
            ([2, 9], 1, [0, 1]),
            ([9, 8], 1, [1, 0]),
            ([9, 8], 2, [1, 1]),
            ([9, 8], 0, [0, 0]),
        ] {
            assert_eq!(longest_first(lengths, room), expected, "{lengths:?} in {room}");
        }
    }
}
