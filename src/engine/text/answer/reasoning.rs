//! Where in an answer the thinking is: the rules of vLLM's reasoning parsers, on finished text.

use std::ops::Range;

use super::{AnswerForm, SaidOfThinking, harmony, tags};
use crate::StopChecker;

/// Markers of a family's thinking.
#[derive(Debug)]
pub(super) struct ReasoningFormat {
    /// Names in `--reasoning-parser`, vLLM's. The first goes into the fingerprint.
    pub(super) names: &'static [&'static str],
    /// Start and end of the thinking.
    pub(super) start: &'static str,
    /// See `start`.
    pub(super) end: &'static str,
    /// Models have the markers as special tokens, which a text shows only if asked to.
    pub(super) has_special_tokens: bool,
    /// Setting of a row by which its answer is split.
    pub(super) switch: Switch,
    /// Rule of the split.
    pub(super) rule: Rule,
    /// What of the content is not shown.
    pub(super) frame: Frame,
}

/// What a model writes around its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Nothing.
    None,
    /// Line ends before it.
    LineEnds,
    /// Tags, of which both are there or neither counts.
    Both(&'static str, &'static str),
    /// Tags, of which each counts alone.
    Each(&'static str, &'static str),
}

/// When an answer may think at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    /// The template has no switch.
    Always,
    /// Unless the row turns it off.
    UnlessOff,
    /// Only if the row turns it on.
    IfOn,
    /// Only if the row asks for effort.
    ByEffort,
    /// The answer begins inside the thinking unless the row turns it off. Tags count either way.
    Opens,
}

impl Switch {
    /// Whether an answer may think, by what its row says.
    pub(super) fn is_on(self, said: SaidOfThinking) -> bool {
        match self {
            Self::Always => true,
            Self::UnlessOff => said.switch != Some(false),
            Self::IfOn => said.switch == Some(true),
            Self::ByEffort => said.effort == Some(true),
            Self::Opens => said.switch != Some(false) && said.effort != Some(false),
        }
    }
}

/// Rule that finds thinking.
#[derive(Debug)]
pub(super) enum Rule {
    /// All before the first end, and all where there is none. A start tag is where it begins.
    UpToEnd,
    /// The same where there is an end. A start tag is one at the answer's beginning.
    IfEnded,
    /// Tags that switch between thinking and content, wherever they are.
    Tags {
        /// A call of a tool ends the thinking too, and belongs to the content.
        call: &'static str,
        /// The answer begins inside the thinking: the template opened it.
        is_open: bool,
        /// A start tag in the content begins thinking again.
        reopens: bool,
        /// White space at the thinking's end is dropped.
        trims: bool,
    },
    /// Granite's two sentences. One without the other is content.
    Sentences,
    /// Gemma 4's tags, which the answer may begin inside, and a word behind the first.
    Channel,
    /// Hunyuan's tags on lines of their own, with tags around the content too.
    Answer,
    /// Channels of gpt-oss, which say what is a call too: `harmony.rs` reads the whole answer.
    Harmony,
}

const THINK: (&str, &str) = ("<think>", "</think>");
const TOOL_CALL: &str = "<tool_call>";

/// What begins Gemma 4's calls.
const CHANNEL_CALL: &str = "<|tool_call>";
/// The word that Gemma 4 begins its thinking with.
const THOUGHT: &str = "thought";
/// What Hunyuan writes before its thinking, between that and its answer, and behind that.
const HUNYUAN: [&str; 3] = ["<think>\n", "\n</think>\n<answer>\n", "\n</answer>"];

/// Granite's sentences, as they are also written by quantized models.
const THOUGHTS: &[&str] = &["Here is my thought process:", "Here's my thought process:"];
const RESPONSE: &[&str] = &["Here is my response:", "Here's my response:"];

/// All formats.
pub(super) const FORMATS: &[ReasoningFormat] = &[
    plain(&["deepseek_r1"], Switch::Always, Rule::UpToEnd),
    plain(&["deepseek_v3", "poolside_v1"], Switch::IfOn, Rule::UpToEnd),
    plain(&["hy_v3"], Switch::ByEffort, Rule::UpToEnd),
    plain(&["holo2"], Switch::UnlessOff, Rule::UpToEnd),
    plain(&["olmo3"], Switch::Always, Rule::IfEnded),
    ReasoningFormat {
        names: &["qwen3", "mimo"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: false,
        switch: Switch::UnlessOff,
        frame: Frame::None,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: false },
    },
    ReasoningFormat {
        names: &["step3p5"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: false,
        switch: Switch::Always,
        frame: Frame::None,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: true },
    },
    ReasoningFormat {
        names: &["glm45", "glm47", "ling3"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: true,
        switch: Switch::UnlessOff,
        frame: Frame::None,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: true, trims: true },
    },
    ReasoningFormat {
        names: &["kimi_k2"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: true,
        switch: Switch::UnlessOff,
        frame: Frame::None,
        rule: Rule::Tags {
            call: "<|tool_calls_section_begin|>",
            is_open: true,
            reopens: false,
            trims: true,
        },
    },
    ReasoningFormat {
        names: &["seed_oss"],
        start: "<seed:think>",
        end: "</seed:think>",
        has_special_tokens: true,
        switch: Switch::UnlessOff,
        frame: Frame::None,
        rule: Rule::Tags { call: "<seed:tool_call>", is_open: true, reopens: false, trims: false },
    },
    ReasoningFormat {
        names: &["mistral"],
        start: "[THINK]",
        end: "[/THINK]",
        has_special_tokens: true,
        switch: Switch::Always,
        frame: Frame::None,
        rule: Rule::Tags { call: "[TOOL_CALLS]", is_open: false, reopens: true, trims: true },
    },
    ReasoningFormat {
        names: &["granite"],
        start: THOUGHTS[0],
        end: RESPONSE[0],
        has_special_tokens: false,
        switch: Switch::Always,
        frame: Frame::None,
        rule: Rule::Sentences,
    },
    special(
        &["nemotron_v3"],
        Switch::UnlessOff,
        Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: true },
    ),
    ReasoningFormat {
        frame: Frame::LineEnds,
        ..special(
            &["granite_thinking_parser"],
            Switch::UnlessOff,
            Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: true },
        )
    },
    special(
        &["minimax_m2"],
        Switch::Always,
        Rule::Tags { call: "<minimax:tool_call>", is_open: true, reopens: false, trims: true },
    ),
    special(
        &["deepseek_v4"],
        Switch::Opens,
        Rule::Tags { call: "<｜DSML｜tool_calls>", is_open: true, reopens: true, trims: true },
    ),
    special(
        &["deepseek_v41"],
        Switch::Opens,
        Rule::Tags { call: "<｜DSML｜ calls>", is_open: true, reopens: true, trims: true },
    ),
    ReasoningFormat {
        frame: Frame::Both("<response>", "</response>"),
        ..special(&["ernie45"], Switch::Always, Rule::UpToEnd)
    },
    ReasoningFormat {
        start: "<|channel>",
        end: "<channel|>",
        ..special(&["gemma4"], Switch::Always, Rule::Channel)
    },
    ReasoningFormat {
        start: "<|START_THINKING|>",
        end: "<|END_THINKING|>",
        frame: Frame::Each("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ..special(
            &["cohere_command3"],
            Switch::Always,
            Rule::Tags { call: "<|START_ACTION|>", is_open: false, reopens: true, trims: true },
        )
    },
    plain(&["hunyuan_a13b"], Switch::Always, Rule::Answer),
    ReasoningFormat {
        names: &["openai_gptoss", "gpt-oss"],
        start: harmony::THINKING,
        end: harmony::FINAL,
        has_special_tokens: true,
        switch: Switch::Always,
        frame: Frame::None,
        rule: Rule::Harmony,
    },
];

/// A format of `<think>` tags of plain text.
const fn plain(names: &'static [&'static str], switch: Switch, rule: Rule) -> ReasoningFormat {
    ReasoningFormat {
        names,
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: false,
        switch,
        rule,
        frame: Frame::None,
    }
}

/// The same of special tokens.
const fn special(names: &'static [&'static str], switch: Switch, rule: Rule) -> ReasoningFormat {
    ReasoningFormat { has_special_tokens: true, ..plain(names, switch, rule) }
}

/// An answer's parts, by place. Tags are in neither.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    /// The thinking, in order.
    pub(super) thinking: Vec<Range<usize>>,
    /// The rest, in order.
    pub(super) content: Vec<Range<usize>>,
}

impl ReasoningFormat {
    /// Finds the thinking. Harmony's is not found here.
    pub(super) fn split(&self, text: &str, form: &AnswerForm) -> Split {
        let is_on = self.switch.is_on(form.thinking);
        if !is_on && self.switch != Switch::Opens {
            return all_content(text);
        }
        let mut split = match self.rule {
            Rule::UpToEnd => self.split_at_end(text),
            Rule::IfEnded => self.split_if_ended(text),
            Rule::Tags { call, is_open, reopens, trims } => {
                self.split_at_tags(text, Tags { call, is_open: is_open && is_on, reopens, trims })
            }
            Rule::Channel => self.split_at_channel(text),
            Rule::Answer => split_at_answer(text),
            Rule::Sentences => split_at_sentences(text),
            Rule::Harmony => all_content(text),
        };
        self.frame.take_off(text, &mut split.content);
        split
    }

    /// The same of a text that goes on: without content that may turn out to be none. Content is
    /// the beginning of the whole text's.
    pub(super) fn split_so_far(&self, text: &str, form: &AnswerForm) -> Split {
        let is_decided = match self.rule {
            _ if matches!(self.frame, Frame::Both(..) | Frame::Each(..)) => false,
            _ if !self.switch.is_on(form.thinking) => true,
            Rule::UpToEnd | Rule::Tags { .. } => true,
            Rule::Channel => text.contains(self.start),
            Rule::Answer => false,
            Rule::IfEnded => text.contains(self.end),
            Rule::Sentences => thinking_of_sentences(text).is_some(),
            Rule::Harmony => false,
        };
        match self.rule {
            _ if !is_decided => Split::default(),
            Rule::Tags { .. } | Rule::Channel => {
                // A tag may have begun.
                let call =
                    if let Rule::Tags { call, .. } = self.rule { call } else { CHANNEL_CALL };
                let tags = [self.start, self.end, call];
                let num_undecided = StopChecker::num_undecided_bytes(text, &tags);
                self.split(&text[..text.len() - num_undecided], form)
            }
            _ => self.split(text, form),
        }
    }

    fn split_at_end(&self, text: &str) -> Split {
        let end = text.find(self.end);
        let thinking_end = end.unwrap_or(text.len());
        let start = text[..thinking_end].find(self.start).map_or(0, |at| at + self.start.len());
        let content = end.map_or(text.len(), |at| at + self.end.len());
        Split { thinking: present(start..thinking_end), content: present(content..text.len()) }
    }

    fn split_if_ended(&self, text: &str) -> Split {
        let Some(end) = text.find(self.end) else {
            return all_content(text);
        };
        let start = if text.starts_with(self.start) { self.start.len() } else { 0 };
        let content = end + self.end.len();
        Split { thinking: present(start..end), content: present(content..text.len()) }
    }

    /// Gemma 4: an answer without a start tag begins inside the thinking if it ends some, or begins
    /// with its word. The word at the thinking's beginning is no part of it.
    fn split_at_channel(&self, text: &str) -> Split {
        let begins_with = |word: &str| text == word || text.starts_with(&format!("{word}\n"));
        let is_open =
            !text.contains(self.start) && (text.contains(self.end) || begins_with(THOUGHT));
        let tags = Tags { call: CHANNEL_CALL, is_open, reopens: true, trims: true };
        let mut split = self.split_at_tags(text, tags);
        if let Some(first) = split.thinking.first_mut() {
            let thinking = &text[first.clone()];
            let word = thinking
                .strip_prefix(THOUGHT)
                .filter(|after| after.starts_with('\n') || after.is_empty());
            if let Some(after) = word {
                first.start = first.end - after.strip_prefix('\n').unwrap_or(after).len();
            }
        }
        split.thinking.retain(|part| !part.is_empty());
        split
    }

    fn split_at_tags(&self, text: &str, tags: Tags) -> Split {
        let Tags { call, is_open, reopens, trims } = tags;
        let all = [self.start, self.end, call];
        let mut split = Split::default();
        let mut thinks = is_open;
        // Where the tags are looked for, and where the part that is not out yet begins.
        let (mut at, mut begin) = (0, 0);
        loop {
            let found = tags::first(&text[at..], &all);
            let tag_at = found.map_or(text.len(), |(offset, _)| at + offset);
            let tag = found.map(|(_, tag)| tag);
            at = tag_at + tag.map_or(0, |tag| all[tag].len());
            if tag == Some(2) {
                // A call stays with what follows, where tags are text of its arguments.
                if thinks {
                    split.thinking.extend(present(begin..tag_at));
                    begin = tag_at;
                }
                split.content.extend(present(begin..text.len()));
                break;
            }
            // A start tag in content is text where nothing reopens.
            let (is_text, next) = match tag {
                Some(0) if !thinks && !reopens => (true, thinks),
                Some(0) => (false, true),
                _ => (false, false),
            };
            if is_text {
                continue;
            }
            let part = if thinks { &mut split.thinking } else { &mut split.content };
            part.extend(present(begin..tag_at));
            if found.is_none() {
                break;
            }
            begin = at;
            thinks = next;
        }
        if trims {
            trim_end(text, &mut split.thinking);
        }
        split
    }
}

impl Frame {
    /// Takes off what is around the content.
    fn take_off(self, text: &str, content: &mut Vec<Range<usize>>) {
        match self {
            Self::None => {}
            Self::LineEnds => {
                let is_text = |part: &Range<usize>| text[part.clone()].contains(|c| c != '\n');
                let num_blank = content.iter().position(is_text).unwrap_or(content.len());
                content.drain(..num_blank);
                if let Some(first) = content.first_mut() {
                    first.start = first.end - text[first.clone()].trim_start_matches('\n').len();
                }
            }
            Self::Both(start, end) | Self::Each(start, end) => {
                for part in content.iter_mut() {
                    let shown = &text[part.clone()];
                    let (begin, stop) = (shown.find(start), shown.rfind(end));
                    let is_framed = match (begin, stop) {
                        (Some(begin), Some(stop)) => begin < stop,
                        _ => matches!(self, Self::Each(..)),
                    };
                    if is_framed {
                        let stop = part.start + stop.unwrap_or(shown.len());
                        *part = part.start + begin.map_or(0, |at| at + start.len())..stop;
                    }
                }
                content.retain(|part| !part.is_empty());
            }
        }
    }
}

/// [`Rule::Tags`] of one answer.
#[derive(Clone, Copy)]
struct Tags {
    call: &'static str,
    is_open: bool,
    reopens: bool,
    trims: bool,
}

/// Hunyuan's answer, whole or cut. Without its tags all is content.
fn split_at_answer(text: &str) -> Split {
    let [think, between, end] = HUNYUAN;
    let after = |from: usize, tag: &str| text[from..].find(tag).map(|at| from + at);
    let thinking_from = |from: usize| {
        let start = from + think.len();
        Some((start, after(start, between)?))
    };
    let split = |(start, stop): (usize, usize), content_end: Option<usize>| Split {
        thinking: present(start..stop),
        content: present(stop + between.len()..content_end.unwrap_or(text.len())),
    };
    let Some(first_end) = text.find(end) else {
        return match text.find(think).and_then(thinking_from) {
            Some(thinking) => split(thinking, None),
            None => all_content(text),
        };
    };
    let thinking = text.starts_with(think).then(|| thinking_from(0)).flatten();
    let whole = thinking.and_then(|part| Some((part, after(part.1 + between.len(), end)?)));
    match whole {
        Some((thinking, content_end)) => split(thinking, Some(content_end)),
        None => Split { thinking: Vec::new(), content: present(0..first_end) },
    }
}

/// Drops white space at the end of the last part, and parts of nothing else before it.
fn trim_end(text: &str, parts: &mut Vec<Range<usize>>) {
    while let Some(last) = parts.last_mut() {
        last.end = last.start + text[last.clone()].trim_end().len();
        if last.start < last.end {
            break;
        }
        parts.pop();
    }
}

/// Start and end of the thinking between two sentences, and where the content begins.
fn thinking_of_sentences(text: &str) -> Option<(usize, usize, usize)> {
    let after = |from: usize, sentences: &[&str]| {
        let (offset, sentence) = tags::first(&text[from..], sentences)?;
        Some((from + offset, from + offset + sentences[sentence].len()))
    };
    let (_, start) = after(0, THOUGHTS)?;
    after(start, RESPONSE).map(|(end, content)| (start, end, content))
}

fn split_at_sentences(text: &str) -> Split {
    match thinking_of_sentences(text) {
        Some((start, end, content)) => {
            Split { thinking: present(start..end), content: present(content..text.len()) }
        }
        None => all_content(text),
    }
}

/// An answer without thinking.
fn all_content(text: &str) -> Split {
    Split { thinking: Vec::new(), content: present(0..text.len()) }
}

/// The part, unless it is empty.
fn present(part: Range<usize>) -> Vec<Range<usize>> {
    if part.is_empty() { Vec::new() } else { vec![part] }
}
