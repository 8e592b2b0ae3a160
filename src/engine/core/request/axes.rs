//! Positions of tokens on three axes, of which rotary embeddings of some models are (M-RoPE of
//! Qwen2-VL). They follow from the index of a token and the media before it.

use super::MediaRun;
use crate::media_table::MediaForm;

impl MediaRun {
    /// Gives the media of a prompt their places on the axes. A token of text or of a sound moves
    /// all three by one; those of an image are at one place of the first, and at their rows and
    /// columns of the others, and what follows them is behind its longer side.
    pub fn place_on_axes(runs: &mut [MediaRun]) {
        for index in 0..runs.len() {
            let (before, rest) = runs.split_at_mut(index);
            let first = rest[0].positions.start;
            rest[0].axis = Some(after(before.last(), first));
        }
    }

    /// Rows and columns of its medium's tokens; None: they follow each other as those of a text.
    fn grid(&self) -> Option<(usize, usize)> {
        match self.medium.form() {
            MediaForm::Image(layout) => {
                Some((layout.rows / layout.merge_size, layout.columns / layout.merge_size))
            }
            MediaForm::Sound(_) => None,
        }
    }
}

/// The position on all axes of a token of text, or of the first token of a medium.
fn after(last: Option<&MediaRun>, index: usize) -> u32 {
    let Some((run, first)) = last.and_then(|run| Some((run, run.axis?))) else {
        return index as u32;
    };
    let num_places = run.grid().map_or(run.positions.len(), |(rows, columns)| rows.max(columns));
    first + (num_places + index - run.positions.end) as u32
}

/// The positions on the axes of a token of a prompt with these media, or of one behind it. None is
/// above its index.
pub fn axes_of(media: &[MediaRun], index: usize) -> [u32; 3] {
    let num_before = media.partition_point(|run| run.positions.start <= index);
    let last = media[..num_before].last();
    match last.and_then(|run| Some((run, run.axis?))) {
        Some((run, first)) if index < run.positions.end => match run.grid() {
            Some((_, columns)) => {
                let token = run.first_token as usize + index - run.positions.start;
                [first, first + (token / columns) as u32, first + (token % columns) as u32]
            }
            None => [first + (index - run.positions.start) as u32; 3],
        },
        _ => [after(last, index); 3],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::media_table::tests::{medium, table};
    use crate::request::Whole;

    /// Images of 2x2 tokens, as `get_rope_index` of transformers 5.24 places them.
    #[test]
    fn an_image_is_a_square_and_text_goes_on_behind_it() {
        let placed = table(0).place(&[1, 2].map(medium)).unwrap();
        let run = |index: usize, start: usize| MediaRun {
            medium: Arc::clone(&placed[index]),
            positions: start..start + 4,
            first_token: 0,
            axis: None,
            whole: Whole::None,
        };
        let mut media = vec![run(0, 2), run(1, 7), run(0, 11)];
        assert_eq!(axes_of(&media, 9), [9; 3], "the model has one axis");
        MediaRun::place_on_axes(&mut media);
        let axes: Vec<_> = (0..18).map(|index| axes_of(&media, index)).collect();
        let square = |a: u32| [[a, a, a], [a, a, a + 1], [a, a + 1, a], [a, a + 1, a + 1]];
        let text = |a: u32| [a; 3];
        assert_eq!(axes[..2], [text(0), text(1)]);
        assert_eq!(axes[2..6], square(2));
        assert_eq!(axes[6], text(4));
        assert_eq!(axes[7..11], square(5));
        assert_eq!(axes[11..15], square(7), "no text between");
        assert_eq!(axes[15..], [9, 10, 11].map(text));
        assert!(
            axes.iter().enumerate().all(|(index, axes)| axes.iter().all(|a| *a <= index as u32))
        );
    }
}
