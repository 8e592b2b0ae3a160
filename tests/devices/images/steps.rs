//! Steps made by hand: rows of tokens and media, in chunks, with blocks of their own.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use vllm_batch::engine::base::config::EngineConfig;
use vllm_batch::engine::checkpoint::spec::Bidirectional;
use vllm_batch::engine::core::execute::executor::Executor;
use vllm_batch::engine::core::execute::model_executor::ModelExecutor;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::load::step_sizes::StepSizes;
use vllm_batch::engine::core::media_table::{MediaTable, TableMedium};
use vllm_batch::engine::core::request::{MediaRun, Whole, axes_of};
use vllm_batch::engine::device::Device;
use vllm_batch::engine::ops::batch::{Batch, MediaRows};

const BLOCK_SIZE: usize = 16;
/// Blocks of a row: 256 tokens.
const NUM_BLOCKS: usize = 16;

/// A prompt, and which of its tokens are which of which medium.
pub struct Row {
    ids: Vec<u32>,
    media: Vec<Option<(u64, u32)>>,
    /// Where its media are on axes; empty: the model has one axis, or there are none.
    placed: Vec<MediaRun>,
    /// Where images are that are attended to whole, each in one step.
    whole: Vec<Range<usize>>,
    /// Tokens that see all of each other, also past a window.
    prefix_len: usize,
}

/// What differs between rows of models.
#[derive(Clone)]
pub struct RowKind {
    /// The token that stands for one of an image's.
    pub image_token_id: u32,
    /// Other tokens that an image has.
    pub marks: Vec<u32>,
    /// What tokens see besides those before them.
    pub bidirectional: Bidirectional,
    /// Tokens have positions on axes.
    pub has_axes: bool,
}

impl Row {
    /// The tokens of the media stand where the model's token of images does, without others
    /// between if tokens have positions on axes.
    pub fn new(ids: &[u32], media: &[Arc<TableMedium>], kind: RowKind) -> Self {
        let RowKind { image_token_id, marks, bidirectional, has_axes } = kind;
        let is_of_image = |id: &u32| *id == image_token_id || marks.contains(id);
        let mut tokens = media.iter().flat_map(|medium| {
            let number = medium.number();
            (0..medium.form().num_tokens() as u32).map(move |token| (number, token))
        });
        let of_token = |id: &u32| is_of_image(id).then(|| tokens.next().expect("enough"));
        let of_tokens = ids.iter().map(of_token).collect();
        let mut end = 0;
        let runs = ids.chunk_by(|a, b| is_of_image(a) == is_of_image(b)).map(|run| {
            end += run.len();
            is_of_image(&run[0]).then_some(end - run.len()..end)
        });
        let whole = match bidirectional {
            Bidirectional::None => Vec::new(),
            Bidirectional::Image | Bidirectional::Images => runs.flatten().collect(),
            Bidirectional::Prompt => media.first().map(|_| 0..ids.len()).into_iter().collect(),
        };
        let prefix_len = match bidirectional {
            Bidirectional::Prompt if !media.is_empty() => ids.len(),
            _ => 0,
        };
        let table_token = media.first().and_then(|medium| medium.table_token());
        let in_tables = |id: &u32| match table_token {
            Some(token) if *id == image_token_id => token,
            _ => *id,
        };
        let (ids_of_row, placed) = (ids.iter().map(in_tables).collect(), Vec::new());
        let mut row = Self { ids: ids_of_row, media: of_tokens, placed, whole, prefix_len };
        assert!(tokens.next().is_none(), "a place for each token of an image");
        if has_axes {
            let mut media = media.iter();
            let starts = (0..ids.len()).filter(|at| matches!(row.media[*at], Some((_, 0))));
            let run = |start: usize| {
                let medium = Arc::clone(media.next().expect("one for each start"));
                let positions = start..start + medium.form().num_tokens();
                MediaRun { medium, positions, first_token: 0, axis: None, whole: Whole::None }
            };
            row.placed = starts.map(run).collect();
            MediaRun::place_on_axes(&mut row.placed);
        }
        row
    }

    /// Positions of its tokens on axes.
    pub fn axes(&self) -> Vec<[u32; 3]> {
        (0..self.ids.len()).map(|position| axes_of(&self.placed, position)).collect()
    }

    /// Where a chunk ends that should end here.
    fn chunk_end(&self, end: usize) -> usize {
        let inside = |image: &&Range<usize>| image.start < end && end < image.end;
        self.whole.iter().find(inside).map_or(end, |image| image.end).min(self.ids.len())
    }

    pub fn push(&mut self, token: u32) {
        self.ids.push(token);
        self.media.push(None);
    }
}

/// A model, and steps for it.
pub struct Runner {
    device: Arc<Device>,
    executor: ModelExecutor,
}

impl Runner {
    pub fn load(config: EngineConfig, num_threads: usize, table: &Arc<MediaTable>) -> Self {
        Self::load_on(Device::cpu(Some(num_threads)), config, table)
    }

    pub fn load_on(device: Device, config: EngineConfig, table: &Arc<MediaTable>) -> Self {
        let summary = ModelSummary::read(&config.model).unwrap();
        let (sizes, device) = (StepSizes::usual(&config), Arc::new(device));
        let (given_up, on) = (Arc::new(AtomicBool::new(false)), Arc::clone(&device));
        let mut executor = ModelExecutor::load(&config, &sizes, &summary, on, &given_up).unwrap();
        executor.set_media_table(Arc::clone(table));
        Self { device, executor }
    }

    /// Logits behind each row, all of them computed side by side, in chunks.
    pub fn prefill(&mut self, rows: &[&Row], chunk: usize) -> Vec<Vec<f32>> {
        let mut found = HashMap::new();
        let longest = rows.iter().map(|row| row.ids.len()).max().expect("a row");
        for start in (0..longest).step_by(chunk) {
            let parts: Vec<_> = rows
                .iter()
                .enumerate()
                .map(|(index, row)| {
                    (index, *row, row.chunk_end(start)..row.chunk_end(start + chunk))
                })
                .filter(|(_, _, tokens)| !tokens.is_empty())
                .collect();
            if parts.is_empty() {
                // All rows went on to the ends of images.
                continue;
            }
            let mut logits = self.step(&parts).into_iter();
            for (index, row, tokens) in &parts {
                if tokens.end == row.ids.len() {
                    found.insert(*index, logits.next().expect("one for each that ends"));
                }
            }
        }
        (0..rows.len()).map(|index| found.remove(&index).expect("a row ends")).collect()
    }

    /// Logits behind a row of which all but the last token were computed as the only one.
    pub fn decode(&mut self, row: &Row) -> Vec<f32> {
        let last = row.ids.len() - 1;
        self.step(&[(0, row, last..last + 1)]).remove(0)
    }

    /// Logits of the rows that end in the step.
    fn step(&mut self, parts: &[(usize, &Row, Range<usize>)]) -> Vec<Vec<f32>> {
        let mut batch = Batch { max_blocks_per_seq: NUM_BLOCKS, ..Batch::default() };
        batch.query_start_loc.push(0);
        let has_axes = parts.iter().any(|(_, row, _)| !row.placed.is_empty());
        for (index, row, tokens) in parts {
            for position in tokens.clone() {
                if let Some(token) = row.media[position] {
                    add_media(&mut batch, token);
                }
                batch.input_ids.push(row.ids[position]);
                batch.positions.push(position as u32);
                batch.axes.extend(has_axes.then(|| axes_of(&row.placed, position)));
                batch.slot_mapping.push((index * NUM_BLOCKS * BLOCK_SIZE + position) as u32);
                if let Some(image) = row.whole.iter().find(|image| image.contains(&position)) {
                    let row = batch.positions.len() - 1;
                    batch.attend_to_image(row..row + 1, image.end as u32);
                }
            }
            let first_block = index * NUM_BLOCKS;
            batch.block_tables.extend((first_block..first_block + NUM_BLOCKS).map(|b| b as u32));
            batch.query_start_loc.push(batch.input_ids.len() as u32);
            batch.set_prefix_len(row.prefix_len);
            batch.seq_lens.push(tokens.end as u32);
            if tokens.end == row.ids.len() {
                batch.logits_indices.push(batch.input_ids.len() as u32 - 1);
            }
        }
        let num_logits = batch.logits_indices.len();
        let logits = self.executor.execute(&batch).unwrap();
        let values = self.device.read(logits.tensor).unwrap();
        values.chunks(logits.tensor.width()).take(num_logits).map(<[f32]>::to_vec).collect()
    }
}

/// The next token of the batch is one of a medium.
fn add_media(batch: &mut Batch, (medium, token): (u64, u32)) {
    let at = batch.input_ids.len() as u32;
    match batch.media.last_mut() {
        Some(last)
            if (last.medium, last.rows.end) == (medium, at)
                && last.first_token + last.rows.len() as u32 == token =>
        {
            last.rows.end += 1;
        }
        _ => batch.media.push(MediaRows { medium, first_token: token, rows: at..at + 1 }),
    }
}
