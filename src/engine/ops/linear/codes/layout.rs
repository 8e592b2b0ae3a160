//! Where the parts of a panel of codes are.

use std::ops::Range;

use crate::gemm::MAX_PANEL_WIDTH;
use vllm_batch_base::matrix::{CodeKind, Levels, SUPER_GROUP, Scales, UNIT};
use vllm_batch_device::pages::Pages;

/// Words to a cache line: each section begins at one.
const LINE_WORDS: usize = 16;

/// Panels of codes; each has a kind of its own.
#[derive(Debug)]
pub(in super::super) struct CodePanels {
    /// Lanes of a panel.
    pub width: usize,
    /// Inputs.
    pub k: usize,
    /// The kinds that there are.
    pub kinds: Vec<PanelKind>,
    /// By panel: its kind, and its first word.
    pub panels: Vec<(usize, usize)>,
    pub words: Pages<u32>,
}

/// Type of the words of a panel.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum PanelKind {
    /// Codes, and where its sections are.
    Codes(CodeKind, Layout),
    /// f32, (k, width): rows of several kinds, or of none.
    Dense,
}

/// Sections of a panel of codes, in words from its beginning.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Layout {
    /// Inputs that share a scale.
    pub group: usize,
    pub num_groups: usize,
    pub num_supers: usize,
    pub codes: Range<usize>,
    pub scales: Range<usize>,
    pub offsets: Range<usize>,
    pub supers: Range<usize>,
    pub super_minima: Range<usize>,
    /// Words of the whole panel.
    pub num_words: usize,
}

/// Rounding of dequantized values for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Rounding {
    /// Not at all: they are f32.
    Exact,
    /// To bf16, and widened.
    BFloat16,
    /// To bf16, and in words of two inputs each.
    Pairs,
}

/// One panel.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Panel<'a> {
    pub kind: &'a PanelKind,
    pub words: &'a [u32],
}

impl Layout {
    /// Layout of k inputs by `width` lanes.
    pub(crate) fn new(kind: &CodeKind, k: usize, width: usize) -> Self {
        let group = kind.group_of(k);
        let num_units = k.div_ceil(UNIT);
        let num_groups = (num_units * UNIT).div_ceil(group);
        let has_supers = matches!(kind.scales, Scales::Super { .. });
        let num_supers = if has_supers { k.div_ceil(SUPER_GROUP) } else { 0 };
        let has_minima = kind.levels == Levels::Minima;
        let mut end = 0;
        let mut section = |num_bytes: usize| {
            let start = end;
            end += num_bytes.div_ceil(4).next_multiple_of(LINE_WORDS);
            start..end
        };
        let codes = section(4 * num_units * kind.bits as usize * width);
        let scales = section(num_groups * width * kind.scales.num_bytes());
        let offsets = section(num_groups * width * kind.offset_bytes());
        let supers = section(2 * num_supers * width);
        let super_minima = section(if has_minima { 2 * num_supers * width } else { 0 });
        Self {
            group,
            num_groups,
            num_supers,
            codes,
            scales,
            offsets,
            supers,
            super_minima,
            num_words: end,
        }
    }
}

impl PanelKind {
    /// Words of a panel of k inputs by `width` lanes.
    pub(crate) fn num_words(&self, k: usize, width: usize) -> usize {
        match self {
            PanelKind::Codes(_, layout) => layout.num_words,
            PanelKind::Dense => k.next_multiple_of(2) * width,
        }
    }
}

impl CodePanels {
    /// Panel `index`.
    pub(crate) fn panel(&self, index: usize) -> Panel<'_> {
        let (kind, first) = self.panels[index];
        let kind = &self.kinds[kind];
        Panel { kind, words: &self.words[first..first + kind.num_words(self.k, self.width)] }
    }

    /// Where the codes of an input of a panel begin, or what lies behind the last one, and the
    /// bytes of an input.
    pub(crate) fn codes_behind(&self, index: usize, input: usize) -> (*const u8, usize) {
        let (kind, first) = self.panels[index];
        let bits = match &self.kinds[kind] {
            PanelKind::Codes(kind, _) => kind.bits as usize,
            PanelKind::Dense => 32,
        };
        let words = self.words.as_ptr().wrapping_add(first);
        let num_bytes = bits * self.width;
        (words.cast::<u8>().wrapping_add(input * num_bytes / 8), num_bytes.div_ceil(8))
    }

    /// Bytes of panels for n rows of k such codes, in the widest panels; None: they do not stay.
    pub(crate) fn num_bytes_of(kind: &CodeKind, n: usize, k: usize) -> Option<usize> {
        let num_words = || Layout::new(kind, k, MAX_PANEL_WIDTH).num_words;
        kind.is_supported().then(|| 4 * num_words() * n.div_ceil(MAX_PANEL_WIDTH))
    }

    /// Bytes that they take.
    pub(crate) fn num_bytes(&self) -> usize {
        4 * self.words.len()
    }
}
