//! Gates: what measures must be. The tool has no noise, so they have none.

use serde_json::{Value, json};

use super::totals::Totals;
use crate::args::EvalFlags;
use vllm_batch_dataset::judge::settings::Scorer;
use vllm_batch_dataset::terminal::error::CliError;

/// What must hold of an output.
#[derive(Debug)]
pub struct Gates(Vec<Gate>);

/// A limit of a measure.
#[derive(Clone, Debug, PartialEq)]
struct Gate {
    metric: String,
    group: Option<String>,
    limit: f64,
    /// The measure may not be higher, in place of lower.
    is_most: bool,
}

/// A gate, and what the measure is.
#[derive(Clone, Debug)]
pub struct Outcome {
    gate: String,
    value: f64,
    holds: bool,
}

impl Gates {
    /// The gates of the flags.
    ///
    /// # Errors
    /// One of them is no measure with a number.
    pub fn new(flags: &EvalFlags) -> Result<Self, CliError> {
        let under = flags.fail_under.iter().map(|text| ("--fail-under", text, false));
        let over = flags.fail_over.iter().map(|text| ("--fail-over", text, true));
        let gate = |(flag, text, is_most): (&str, &String, bool)| {
            Gate::parse(text, is_most).ok_or_else(|| {
                CliError::refused("eval", format!("{flag} {text}: it is no measure and a number"))
                    .help(format!("as in {flag} acc=0.8, or {flag} 'acc[math]=70%'"))
            })
        };
        under.chain(over).map(gate).collect::<Result<_, _>>().map(Self)
    }

    /// Looks at the gates before anything is computed. `is_in_rows`: whether rows may have an
    /// assert of a name.
    ///
    /// # Errors
    /// A measure cannot be there, or cannot be as high.
    pub fn check(
        &self,
        flags: &EvalFlags,
        is_in_rows: &dyn Fn(&str) -> bool,
    ) -> Result<(), CliError> {
        let known = measures_of(flags);
        for gate in &self.0 {
            let Gate { metric, limit, .. } = gate;
            if known.iter().any(|name| name == metric) || metric.starts_with("pass@") {
                let is_share = !UNBOUNDED.contains(&metric.as_str())
                    && (metric != "score" || !flags.scorer.contains(&Scorer::Command));
                if is_share && *limit > 1.0 {
                    let message =
                        format!("`{metric}` is between 0 and 1, and the gate says {limit}");
                    let help = format!("write {metric}={}, or {metric}={limit}%", limit / 100.0);
                    return Err(CliError::refused("eval", message).help(help));
                }
            } else if !is_in_rows(metric) {
                let names = known.join(", ");
                let message = format!("there is no measure `{metric}`; there are {names}");
                let help =
                    "--scorer says which measures there are; so does the `metric` of an assert";
                return Err(CliError::refused("eval", message).help(help));
            }
        }
        Ok(())
    }

    /// What the measures are.
    ///
    /// # Errors
    /// There is no such measure or group. The rows are written, and the command can be given again.
    pub fn outcomes(&self, totals: &Totals) -> Result<Vec<Outcome>, CliError> {
        self.0.iter().map(|gate| gate.outcome(totals)).collect()
    }
}

/// Measures that may be above 1.
const UNBOUNDED: [&str; 7] =
    ["bits_per_byte", "byte_perplexity", "word_perplexity", "perplexity", "command", "wer", "cer"];

/// Measures that rows may have by their scorers, without those of `assert` lists and of several
/// completions.
fn measures_of(flags: &EvalFlags) -> Vec<String> {
    let scorers = if flags.scorer.is_empty() { &[Scorer::Exact][..] } else { &flags.scorer };
    let mut names = Vec::new();
    if flags.pass_if.is_some() || scorers.iter().any(|scorer| !scorer.is_graded()) {
        names.extend(["acc", "majority"]);
    }
    if scorers.len() > 1 {
        names.push("score");
    }
    for scorer in scorers {
        names.extend(match scorer {
            Scorer::Choice => &["acc_norm", "acc_bytes"][..],
            Scorer::Perplexity => &["bits_per_byte", "byte_perplexity", "word_perplexity"],
            Scorer::Wer => &["wer", "word_accuracy"],
            Scorer::Cer => &["cer", "char_accuracy"],
            _ => &[],
        });
        if ![Scorer::Choice, Scorer::Wer, Scorer::Cer].contains(scorer) {
            names.push(scorer.name());
        }
    }
    names.into_iter().map(str::to_owned).collect()
}

impl Gate {
    /// `acc=0.8`, `acc[math]=80%`.
    fn parse(text: &str, is_most: bool) -> Option<Self> {
        let (measure, limit) = text.rsplit_once('=')?;
        let (metric, group) = match measure.strip_suffix(']') {
            Some(rest) => {
                let (metric, group) = rest.split_once('[')?;
                (metric, Some(group.to_owned()))
            }
            None => (measure, None),
        };
        let limit = limit.trim();
        let limit = match limit.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
            None => limit.parse().ok()?,
        };
        let metric = metric.trim().to_owned();
        (limit.is_finite() && !metric.is_empty()).then_some(Self { metric, group, limit, is_most })
    }

    fn outcome(&self, totals: &Totals) -> Result<Outcome, CliError> {
        let refused = |message: String| {
            let help = "the rows are written: the same command with another gate computes nothing";
            Err(CliError::refused("eval", message).help(help))
        };
        let group = match &self.group {
            None => &totals.all,
            Some(name) => match totals.groups.get(name) {
                Some(group) => group,
                None => return refused(format!("no row has the group `{name}`")),
            },
        };
        match totals.value(group, &self.metric) {
            Some(value) => Ok(Outcome { gate: self.text(), value, holds: self.holds(value) }),
            None => {
                let named = totals.measures(group);
                let names = named.keys().map(String::as_str);
                let others = group.of_texts().into_iter().map(|(name, _)| name);
                let names: Vec<&str> = names.chain(others).collect();
                let metric = &self.metric;
                refused(format!("there is no measure `{metric}`; there are {}", names.join(", ")))
            }
        }
    }

    fn holds(&self, value: f64) -> bool {
        if self.is_most { value <= self.limit } else { value >= self.limit }
    }

    /// As a person reads it.
    fn text(&self) -> String {
        let group = self.group.as_ref().map(|name| format!("[{name}]")).unwrap_or_default();
        let sign = if self.is_most { "<=" } else { ">=" };
        format!("{}{group} {sign} {}", self.metric, self.limit)
    }
}

impl Outcome {
    /// Whether rows of a baseline were not better by more than a share.
    pub fn of_regression(difference: f64, most: f64) -> Self {
        let gate = format!("difference to the baseline >= -{most}");
        Self { gate, value: difference, holds: -difference <= most }
    }

    /// Whether there are no error rows.
    pub fn of_errors(num_errors: u64) -> Self {
        let gate = "error rows <= 0".to_owned();
        Self { gate, value: num_errors as f64, holds: num_errors == 0 }
    }

    /// Whether the gate holds.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// The gate as a person reads it.
    pub fn gate(&self) -> &str {
        &self.gate
    }

    /// What the measure is.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// As reports have it.
    pub fn json(&self) -> Value {
        json!({"gate": self.gate, "value": self.value, "holds": self.holds})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_measures_with_numbers() {
        let gate = |text: &str| Gate::parse(text, false).map(|gate| gate.text());
        let cases = [
            ("acc=0.8", Some("acc >= 0.8")),
            ("acc[math]=70%", Some("acc[math] >= 0.7")),
            ("pass@4[a=b]=.5", Some("pass@4[a=b] >= 0.5")),
            ("acc", None),
            ("=1", None),
            ("acc=high", None),
            ("acc]=1", None),
            ("acc=inf", None),
        ];
        for (text, expected) in cases {
            assert_eq!(gate(text).as_deref(), expected, "{text}");
        }
    }
}
