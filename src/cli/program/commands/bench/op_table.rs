//! What a run's ops cost: a table, and the same as JSON. An op's floor is what its operations or
//! its bytes, whichever is more, take at the limits of the machine.

use std::fmt::Write;

use serde_json::{Value, json};

use vllm_batch_engine::stats::{Arithmetic, Limit, Limits, OpTime, OpTimes};

/// What ops cost, the longest first, and what of the steps' time no op took.
pub struct OpTable<'a> {
    limits: Limits,
    ops: Vec<&'a OpTime>,
    /// Of all steps.
    step_seconds: f64,
}

/// The table, or why there is none; the last line without a line break.
pub fn text(table: Option<&OpTable<'_>>) -> String {
    match table {
        Some(table) => table.text(),
        None => "Ops: not timed, a GPU only queues them (--time-ops)".to_owned(),
    }
}

impl<'a> OpTable<'a> {
    /// Of a run whose steps took so long.
    pub fn new(times: &'a OpTimes, step_seconds: f64) -> Self {
        let mut ops: Vec<_> = times.ops.iter().collect();
        ops.sort_by_key(|op| std::cmp::Reverse(op.time));
        Self { limits: times.limits, ops, step_seconds }
    }

    /// Lines of the ops and of the limits.
    fn text(&self) -> String {
        let names: Vec<String> = self.ops.iter().map(|op| op.op.to_string()).collect();
        let width = names.iter().map(String::len).fold("no op".len(), usize::max);
        let mut text = format!("{:width$}     calls   seconds  of time  of floor\n", "Op");
        for (name, op) in names.iter().zip(&self.ops) {
            let seconds = op.time.as_secs_f64();
            let floor = of_floor(op.floor_seconds(&self.limits), seconds);
            let rest = format!("{} {floor}", self.of_time(seconds));
            let _ = writeln!(text, "{name:width$} {:>9} {rest}", op.num_calls);
        }
        let rest = self.step_seconds - self.op_seconds();
        let _ = writeln!(text, "{:width$} {:>9} {}", "no op", "", self.of_time(rest));
        let floor = of_floor(self.floor_seconds(), self.step_seconds);
        let all = self.of_time(self.step_seconds);
        let _ = writeln!(text, "{:width$} {:>9} {all} {floor}", "all", "");
        text + &self.limits_text()
    }

    /// `ops` of the JSON: as the table, without its last two lines.
    pub fn json(&self) -> Value {
        let op = |op: &&OpTime| {
            let (seconds, floor) = (op.time.as_secs_f64(), op.floor_seconds(&self.limits));
            json!({
                "name": op.op.to_string(),
                "calls": op.num_calls,
                "seconds": seconds,
                "share_of_time": share(seconds, self.step_seconds),
                "floor_seconds": floor,
                "share_of_floor": share(floor, seconds),
                "arithmetic": op.op.arithmetic.name(),
                "flops": op.work.flops,
                "bytes": op.work.bytes,
            })
        };
        self.ops.iter().map(op).collect()
    }

    /// `limits` of the JSON: null for what nothing computes in.
    pub fn limits_json(&self) -> Value {
        let limit = |limit: Limit, unit: &str, scale: f64| -> Value {
            json!({ unit: scale * limit.per_second, "is_given": limit.is_given })
        };
        let mut limits = json!({ "memory": limit(self.limits.memory, "gb_per_second", 1e-9) });
        for arithmetic in Arithmetic::ALL {
            let peak = self.limits.arithmetic[arithmetic as usize];
            limits[arithmetic.name()] =
                peak.map_or(Value::Null, |peak| limit(peak, "tflops", 1e-12));
        }
        limits
    }

    fn op_seconds(&self) -> f64 {
        self.ops.iter().map(|op| op.time.as_secs_f64()).sum()
    }

    fn floor_seconds(&self) -> f64 {
        self.ops.iter().map(|op| op.floor_seconds(&self.limits)).sum()
    }

    /// Columns of seconds and their share of the steps' time.
    fn of_time(&self, seconds: f64) -> String {
        format!("{seconds:>9.3} {}", percent(seconds, self.step_seconds))
    }

    fn limits_text(&self) -> String {
        let Limits { arithmetic, memory } = self.limits;
        if !arithmetic.into_iter().flatten().chain([memory]).any(is_known) {
            return "Limits: none are given".to_owned();
        }
        let source = |limit: Limit| if limit.is_given { "given" } else { "measured" };
        let mut text = "Limits:".to_owned();
        for arithmetic in Arithmetic::ALL {
            let peak = self.limits.arithmetic[arithmetic as usize];
            if let Some(peak) = peak.filter(|peak| is_known(*peak)) {
                let (name, tflops) = (arithmetic.name(), 1e-12 * peak.per_second);
                let _ = write!(text, " {tflops:.3} TFLOP/s {name} ({}),", source(peak));
            }
        }
        if is_known(memory) {
            let gb_per_second = 1e-9 * memory.per_second;
            let _ = write!(text, " {gb_per_second:.1} GB/s memory ({})", source(memory));
        }
        text
    }
}

/// What a GPU gives is known where it was said.
fn is_known(limit: Limit) -> bool {
    limit.per_second.is_finite()
}

/// `part` of `whole`, which may be nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A column: nothing where no floor is known, as of a GPU's kernels.
fn of_floor(floor: f64, seconds: f64) -> String {
    if floor > 0.0 { percent(floor, seconds) } else { format!("{:>8}", "-") }
}

/// A column.
fn percent(part: f64, whole: f64) -> String {
    format!("{:>7.1}%", 100.0 * share(part, whole))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use vllm_batch_engine::stats::{Op, Work};

    fn times() -> OpTimes {
        let limit = |per_second, is_given| Limit { per_second, is_given };
        let limits = Limits {
            arithmetic: [Some(limit(2e11, false)), None, Some(limit(8e11, true))],
            memory: limit(2e10, false),
        };
        let op = |op: Op, num_calls, millis, work: Work, bound_flops, bound_bytes| {
            let time = Duration::from_millis(millis);
            OpTime { op, num_calls, time, work, bound_flops, bound_bytes }
        };
        let linear =
            Op { shape: Some((576, 1536)), arithmetic: Arithmetic::Int8, ..Op::new("linear") };
        let work = Work { flops: 8e11, bytes: 1e10 };
        let ops = vec![
            op(Op::new("add_norm"), 61, 250, Work { flops: 0.0, bytes: 1e10 }, 0.0, 1e10),
            op(linear, 30, 2000, work, 4e11, 2e10),
        ];
        OpTimes { limits, ops }
    }

    #[test]
    fn the_table_is_sorted_and_aligned_and_accounts_for_all_time() {
        let times = times();
        let wanted = "\
Op                    calls   seconds  of time  of floor
linear 576 x 1536        30     2.000    80.0%    75.0%
add_norm                 61     0.250    10.0%   200.0%
no op                           0.250    10.0%
all                             2.500   100.0%    80.0%
Limits: 0.200 TFLOP/s float32 (measured), 0.800 TFLOP/s int8 (given), 20.0 GB/s memory (measured)";
        assert_eq!(OpTable::new(&times, 2.5).text(), wanted);
    }

    #[test]
    fn json_has_the_same_and_the_work() {
        let times = times();
        let table = OpTable::new(&times, 2.5);
        let linear = json!({
            "name": "linear 576 x 1536", "calls": 30, "seconds": 2.0, "share_of_time": 0.8,
            "floor_seconds": 1.5, "share_of_floor": 0.75, "arithmetic": "int8",
            "flops": 8e11, "bytes": 1e10,
        });
        let json = table.json();
        assert_eq!((&json[0], json[1]["name"].as_str()), (&linear, Some("add_norm")));
        assert_eq!(json.as_array().map(Vec::len), Some(2));
        let limits = table.limits_json();
        assert_eq!(limits["bfloat16"], Value::Null);
        assert_eq!(limits["int8"]["is_given"], true);
        assert!((limits["memory"]["gb_per_second"].as_f64().unwrap() - 20.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_known_of_a_gpu_is_no_floor_and_no_limit() {
        let unknown = Limit { per_second: f64::INFINITY, is_given: false };
        let limits = Limits { arithmetic: [Some(unknown); 3], memory: unknown };
        let mut times = OpTimes { limits, ..times() };
        times.ops.truncate(1);
        let text = OpTable::new(&times, 0.5).text();
        assert!(text.contains("add_norm        61     0.250    50.0%        -\n"), "{text}");
        assert!(text.ends_with("\nLimits: none are given"), "{text}");
        assert_eq!(OpTable::new(&times, 0.5).limits_json()["memory"]["gb_per_second"], Value::Null);
    }

    #[test]
    fn a_gpu_has_one_line() {
        assert_eq!(text(None), "Ops: not timed, a GPU only queues them (--time-ops)");
    }

    #[test]
    fn a_run_without_ops_has_a_table_all_the_same() {
        let times = OpTimes { ops: Vec::new(), ..times() };
        let table = OpTable::new(&times, 0.0);
        assert_eq!(text(Some(&table)).lines().count(), 4);
        assert_eq!(table.json(), json!([]));
    }
}
