//! Where in an answer the thinking is: the rules of vLLM's reasoning parsers, on finished text.

use std::ops::Range;

use super::{AnswerForm, harmony, tags};
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
}

impl Switch {
    /// Whether an answer may think, by what its row says.
    pub(super) fn is_on(self, thinking: Option<bool>) -> bool {
        match self {
            Self::Always => true,
            Self::UnlessOff => thinking != Some(false),
            Self::IfOn => thinking == Some(true),
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
    /// Channels of gpt-oss, which say what is a call too: `harmony.rs` reads the whole answer.
    Harmony,
}

const THINK: (&str, &str) = ("<think>", "</think>");
const TOOL_CALL: &str = "<tool_call>";

/// Granite's sentences, as they are also written by quantized models.
const THOUGHTS: &[&str] = &["Here is my thought process:", "Here's my thought process:"];
const RESPONSE: &[&str] = &["Here is my response:", "Here's my response:"];

/// All formats.
pub(super) const FORMATS: &[ReasoningFormat] = &[
    plain(&["deepseek_r1"], Switch::Always, Rule::UpToEnd),
    plain(&["deepseek_v3"], Switch::IfOn, Rule::UpToEnd),
    plain(&["holo2"], Switch::UnlessOff, Rule::UpToEnd),
    plain(&["olmo3"], Switch::Always, Rule::IfEnded),
    ReasoningFormat {
        names: &["qwen3"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: false,
        switch: Switch::UnlessOff,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: false },
    },
    ReasoningFormat {
        names: &["step3p5"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: false,
        switch: Switch::Always,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: false, trims: true },
    },
    ReasoningFormat {
        names: &["glm45", "glm47"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: true,
        switch: Switch::UnlessOff,
        rule: Rule::Tags { call: TOOL_CALL, is_open: true, reopens: true, trims: true },
    },
    ReasoningFormat {
        names: &["kimi_k2"],
        start: THINK.0,
        end: THINK.1,
        has_special_tokens: true,
        switch: Switch::UnlessOff,
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
        rule: Rule::Tags { call: "<seed:tool_call>", is_open: true, reopens: false, trims: false },
    },
    ReasoningFormat {
        names: &["mistral"],
        start: "[THINK]",
        end: "[/THINK]",
        has_special_tokens: true,
        switch: Switch::Always,
        rule: Rule::Tags { call: "[TOOL_CALLS]", is_open: false, reopens: true, trims: true },
    },
    ReasoningFormat {
        names: &["granite"],
        start: THOUGHTS[0],
        end: RESPONSE[0],
        has_special_tokens: false,
        switch: Switch::Always,
        rule: Rule::Sentences,
    },
    ReasoningFormat {
        names: &["openai_gptoss", "gpt-oss"],
        start: harmony::THINKING,
        end: harmony::FINAL,
        has_special_tokens: true,
        switch: Switch::Always,
        rule: Rule::Harmony,
    },
];

/// A format of `<think>` tags of plain text.
const fn plain(names: &'static [&'static str], switch: Switch, rule: Rule) -> ReasoningFormat {
    ReasoningFormat { names, start: THINK.0, end: THINK.1, has_special_tokens: false, switch, rule }
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
        if !self.switch.is_on(form.thinking) {
            return all_content(text);
        }
        match self.rule {
            Rule::UpToEnd => self.split_at_end(text),
            Rule::IfEnded => self.split_if_ended(text),
            Rule::Tags { .. } => self.split_at_tags(text),
            Rule::Sentences => split_at_sentences(text),
            Rule::Harmony => all_content(text),
        }
    }

    /// The same of a text that goes on: without content that may turn out to be none. Content is
    /// the beginning of the whole text's.
    pub(super) fn split_so_far(&self, text: &str, form: &AnswerForm) -> Split {
        let is_decided = match self.rule {
            _ if !self.switch.is_on(form.thinking) => true,
            Rule::UpToEnd | Rule::Tags { .. } => true,
            Rule::IfEnded => text.contains(self.end),
            Rule::Sentences => thinking_of_sentences(text).is_some(),
            Rule::Harmony => false,
        };
        match self.rule {
            _ if !is_decided => Split::default(),
            Rule::Tags { call, .. } => {
                // A tag may have begun.
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

    fn split_at_tags(&self, text: &str) -> Split {
        let Rule::Tags { call, is_open, reopens, trims } = self.rule else {
            return Split::default();
        };
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
