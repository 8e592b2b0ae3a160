//! The rows of each expert: a counting sort of what routing has chosen, which keeps the order of
//! rows.

use super::routing::Chosen;

/// A row of a step that goes to an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ExpertRow {
    /// Row of the batch.
    pub row: u32,
    /// Factor of the expert's outputs.
    pub weight: f32,
}

/// The rows of all experts. Its memory is used again.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    rows: Vec<ExpertRow>,
    /// Where the rows of each expert begin, and where those of the last one end.
    starts: Vec<usize>,
}

impl Grouping {
    /// With memory for so many rows of each token, all tokens together, and so many experts.
    pub(super) fn with_capacity(num_rows: usize, num_experts: usize) -> Self {
        Self { rows: Vec::with_capacity(num_rows), starts: Vec::with_capacity(num_experts + 1) }
    }

    /// Groups what the tokens have chosen: `num_chosen` experts of each, one token after the other.
    pub(super) fn set(&mut self, chosen: &[Chosen], num_chosen: usize, num_experts: usize) {
        let Self { rows, starts } = self;
        starts.clear();
        starts.resize(num_experts + 1, 0);
        chosen.iter().for_each(|chosen| starts[chosen.expert as usize + 1] += 1);
        for expert in 0..num_experts {
            starts[expert + 1] += starts[expert];
        }
        rows.clear();
        rows.resize(chosen.len(), ExpertRow::default());
        for (row, of_row) in chosen.chunks_exact(num_chosen).enumerate() {
            for &Chosen { expert, weight } in of_row {
                // The start moves to the end, which is where the next expert's rows begin.
                let place = &mut starts[expert as usize];
                rows[*place] = ExpertRow { row: row as u32, weight };
                *place += 1;
            }
        }
        starts.rotate_right(1);
        starts[0] = 0;
    }

    /// All factors are 1.
    pub(super) fn forget_weights(&mut self) {
        self.rows.iter_mut().for_each(|row| row.weight = 1.0);
    }

    /// The rows of an expert, upward.
    pub(super) fn rows_of(&self, expert: usize) -> &[ExpertRow] {
        &self.rows[self.starts[expert]..self.starts[expert + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order_within_an_expert() {
        let chosen = [(0, 0.1), (2, 0.2), (2, 0.3), (3, 0.4), (0, 0.5), (3, 0.6)]
            .map(|(expert, weight)| Chosen { expert, weight });
        let mut grouping = Grouping::with_capacity(6, 5);
        for _ in 0..2 {
            grouping.set(&chosen, 2, 5);
            let rows_of = |expert| {
                let rows = grouping.rows_of(expert).iter();
                rows.map(|row| (row.row, row.weight)).collect::<Vec<_>>()
            };
            assert_eq!(rows_of(0), [(0, 0.1), (2, 0.5)]);
            assert_eq!(rows_of(1), []);
            assert_eq!(rows_of(2), [(0, 0.2), (1, 0.3)]);
            assert_eq!(rows_of(3), [(1, 0.4), (2, 0.6)]);
            assert_eq!(rows_of(4), []);
        }
        grouping.set(&[], 2, 1);
        assert_eq!(grouping.rows_of(0), []);
    }
}
