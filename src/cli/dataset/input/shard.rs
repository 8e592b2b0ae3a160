//! `Shard`: which rows of an input are this process's, so that several processes can share one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::terminal::error::CliError;

/// Part `index` of `count` of an input's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Shard {
    /// From 0, less than `count`.
    pub index: u64,
    /// At least 1.
    pub count: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    /// # Errors
    /// There is no such shard.
    pub fn new(index: u64, count: u64) -> Result<Self, String> {
        match count {
            0 => Err("there must be at least 1 shard".to_owned()),
            _ if index >= count => {
                let last = count - 1;
                Err(format!(
                    "there is no shard {index}/{count}: shards are counted from 0, the last is \
                     {last}/{count}"
                ))
            }
            _ => Ok(Self { index, count }),
        }
    }

    /// Whether a row (from 0) is this shard's. Every `count`-th row is, so shards are balanced
    /// whatever the order of the input, and an input of unknown length can be divided.
    pub fn owns(self, row_index: u64) -> bool {
        row_index % self.count == self.index
    }

    /// Number of this shard's rows, of a total.
    pub fn num_rows(self, total: u64) -> u64 {
        total.saturating_sub(self.index).div_ceil(self.count)
    }
}

/// `--shard`, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardArg {
    /// `I/N`.
    Given(Shard),
    /// `auto`: index and count from a Slurm array, the tasks of `srun`, or both.
    Auto,
    /// `auto/N`: the index from Slurm or a Kubernetes Indexed Job.
    AutoOf(u64),
}

/// Parses `I/N`, `auto` or `auto/N`.
///
/// # Errors
/// None of them, or a shard that does not exist.
pub fn shard_arg(text: &str) -> Result<ShardArg, String> {
    let expected = || "expected I/N such as 0/8, auto, or auto/N".to_owned();
    let number = |text: &str| text.parse::<u64>().map_err(|_| expected());
    match text.split_once('/') {
        None if text == "auto" => Ok(ShardArg::Auto),
        None => Err(expected()),
        Some(("auto", count)) => {
            let count = number(count)?;
            Shard::new(0, count).map(|_| ShardArg::AutoOf(count))
        }
        Some((index, count)) => Shard::new(number(index)?, number(count)?).map(ShardArg::Given),
    }
}

const SLURM_ID: &str = "SLURM_ARRAY_TASK_ID";
const SLURM_TASK: &str = "SLURM_PROCID";
const KUBERNETES_INDEX: &str = "JOB_COMPLETION_INDEX";

impl ShardArg {
    /// Shard of this process; `auto` asks the environment.
    ///
    /// # Errors
    /// The environment does not say it, or says what cannot be.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads schedulers' variables")]
    pub fn resolve(self) -> Result<Shard, CliError> {
        self.resolve_in(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn resolve_in(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Shard, CliError> {
        let environment = SchedulerEnvironment { variable };
        match self {
            ShardArg::Given(shard) => Ok(shard),
            ShardArg::Auto => environment.slurm(),
            ShardArg::AutoOf(count) => environment.index_of(count),
        }
    }
}

/// Variables in which a scheduler of jobs describes its processes.
struct SchedulerEnvironment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl SchedulerEnvironment<'_> {
    fn number(&self, name: &str) -> Result<Option<u64>, CliError> {
        let Some(text) = (self.variable)(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(refused(format!("{name}={text} is no number from 0"))),
        }
    }

    /// This process among the tasks of `srun`; None where it is none of them.
    fn slurm_step(&self) -> Result<Option<Shard>, CliError> {
        let Some(index) = self.number(SLURM_TASK)? else { return Ok(None) };
        let count = match self.number("SLURM_STEP_NUM_TASKS")? {
            // A batch script has the number 0 of as many tasks as `srun` will start.
            None if (self.variable)("ENVIRONMENT").is_some_and(|value| value == "BATCH") => None,
            None => self.number("SLURM_NTASKS")?,
            count => count,
        };
        let Some(count) = count else { return Ok(None) };
        let step = Shard::new(index, count);
        step.map(Some).map_err(|error| refused(format!("{SLURM_TASK}={index}: {error}")))
    }

    /// Every task of every job of an array is a shard.
    fn slurm(&self) -> Result<Shard, CliError> {
        let step = self.slurm_step()?;
        match (self.number(SLURM_ID)?, step) {
            (Some(id), None) => self.slurm_array(id),
            (None, Some(step)) => Ok(step),
            (Some(id), Some(step)) => {
                let array = self.slurm_array(id)?;
                let index = array.index.saturating_mul(step.count).saturating_add(step.index);
                Ok(Shard { index, count: array.count.saturating_mul(step.count) })
            }
            (None, None) => {
                let message = match (self.variable)(KUBERNETES_INDEX) {
                    Some(_) => {
                        "--shard auto: a Kubernetes job does not say how many indexes it has"
                    }
                    None => {
                        "--shard auto: this is no task of a Slurm array (no SLURM_ARRAY_TASK_ID), \
                         and none of `srun`"
                    }
                };
                Err(refused(message)
                    .help("give --shard auto/N, or --shard I/N; in a batch script use `srun`"))
            }
        }
    }

    /// The array's task `id` among its tasks.
    fn slurm_array(&self, id: u64) -> Result<Shard, CliError> {
        let Some(count) = self.number("SLURM_ARRAY_TASK_COUNT")? else {
            return Err(refused("--shard auto: no SLURM_ARRAY_TASK_COUNT")
                .help("give --shard auto/N, or --shard I/N"));
        };
        let min = self.number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
        let max = self.number("SLURM_ARRAY_TASK_MAX")?;
        let step = self.number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
        let index = id.checked_sub(min).filter(|distance| distance % step == 0);
        let index = index.map(|distance| distance / step).filter(|index| *index < count);
        // With gaps two tasks would have other ideas of which rows are whose.
        let has_gaps = max.is_some_and(|max| max.saturating_sub(min) / step + 1 != count);
        match index {
            Some(index) if !has_gaps => Ok(Shard { index, count }),
            _ => Err(refused(format!(
                "--shard auto: task {id} of a Slurm array of {count} tasks from {min} in steps of \
                 {step}: the array has gaps"
            ))
            .help("give --shard auto/N with N of the whole array, also to run some tasks again")),
        }
    }

    fn index_of(&self, count: u64) -> Result<Shard, CliError> {
        let (index, place) = match self.number(KUBERNETES_INDEX)? {
            Some(index) => (index, format!("{KUBERNETES_INDEX}={index}")),
            None => self.slurm_index_of(count)?,
        };
        Shard::new(index, count).map_err(|error| {
            let last = count - 1;
            refused(format!("--shard auto/{count}: {place}: {error}"))
                .help(format!("number the tasks from 0 to {last}: sbatch --array=0-{last}"))
        })
    }

    /// The index that Slurm gives, and the variables that say it.
    fn slurm_index_of(&self, count: u64) -> Result<(u64, String), CliError> {
        match (self.number(SLURM_ID)?, self.slurm_step()?) {
            (Some(id), None | Some(Shard { count: 1, .. })) => Ok((id, format!("{SLURM_ID}={id}"))),
            (Some(id), Some(step)) => {
                let place =
                    format!("{SLURM_ID}={id}, {SLURM_TASK}={} of {}", step.index, step.count);
                Ok((id.saturating_mul(step.count).saturating_add(step.index), place))
            }
            (None, Some(step)) if step.count < count => {
                let (tasks, last) = (step.count, count - 1);
                let message = format!(
                    "--shard auto/{count}: `srun` has {tasks} tasks and there is no array, so \
                     nobody has the shards from {tasks} to {last}"
                );
                Err(refused(message).help("give --shard auto, or --shard I/N"))
            }
            (None, Some(step)) => Ok((step.index, format!("{SLURM_TASK}={}", step.index))),
            (None, None) => {
                let message = format!(
                    "--shard auto/{count}: neither {KUBERNETES_INDEX} nor {SLURM_ID} is set, and \
                     this is no task of `srun`"
                );
                Err(refused(message).help("give --shard I/N"))
            }
        }
    }
}

fn refused(message: impl Into<String>) -> CliError {
    CliError::refused("shard", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(typed: &str, variables: &[(&str, &str)]) -> Result<Shard, CliError> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        shard_arg(typed).expect("a form that parses").resolve_in(&value)
    }

    #[test]
    fn every_row_has_one_owner_and_counts_agree() {
        for count in 1..=7u64 {
            for total in 0..=50u64 {
                let mut owned = 0;
                for index in 0..count {
                    let shard = Shard::new(index, count).expect("it exists");
                    let rows = (0..total).filter(|row| shard.owns(*row)).count() as u64;
                    assert_eq!(rows, shard.num_rows(total), "{shard} of {total}");
                    owned += rows;
                }
                assert_eq!(owned, total);
            }
        }
        assert!(Shard::default().owns(u64::MAX));
    }

    #[test]
    fn what_may_be_typed() {
        let shard = Shard { index: 2, count: 8 };
        assert_eq!(shard_arg("2/8"), Ok(ShardArg::Given(shard)));
        assert_eq!(shard.to_string(), "2/8");
        assert_eq!(shard_arg("auto"), Ok(ShardArg::Auto));
        assert_eq!(shard_arg("auto/8"), Ok(ShardArg::AutoOf(8)));
        for text in ["", "2", "/", "2/", "/8", "-1/8", "2/8/9", "a/b", "Auto", "auto/", "auto/x"] {
            let error = shard_arg(text).expect_err(text);
            assert_eq!(error, "expected I/N such as 0/8, auto, or auto/N", "{text}");
        }
        let error = shard_arg("8/8").expect_err("counted from 0");
        assert!(error.ends_with("counted from 0, the last is 7/8"), "{error}");
        for text in ["0/0", "auto/0"] {
            assert_eq!(shard_arg(text).expect_err(text), "there must be at least 1 shard");
        }
    }

    #[test]
    fn auto_asks_slurm() {
        let array = |id, min, max, step, count| {
            let variables = [
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_MIN", min),
                ("SLURM_ARRAY_TASK_MAX", max),
                ("SLURM_ARRAY_TASK_STEP", step),
                ("SLURM_ARRAY_TASK_COUNT", count),
            ];
            resolve("auto", &variables)
        };
        let shard = |index, count| Shard { index, count };
        assert_eq!(array("0", "0", "7", "1", "8").expect("regular"), shard(0, 8));
        assert_eq!(array("8", "1", "8", "1", "8").expect("from 1"), shard(7, 8));
        assert_eq!(array("12", "4", "12", "4", "3").expect("in steps"), shard(2, 3));
        let known = [("SLURM_ARRAY_TASK_ID", "3"), ("SLURM_ARRAY_TASK_COUNT", "4")];
        assert_eq!(resolve("auto", &known).expect("from 0 by default"), shard(3, 4));
        for gaps in [
            array("1", "1", "4", "1", "3"),
            array("4", "1", "4", "1", "3"),
            array("5", "4", "8", "4", "2"),
            array("0", "1", "2", "1", "2"),
        ] {
            let error = gaps.expect_err("an array with gaps");
            assert!(error.message.ends_with("the array has gaps"), "{}", error.message);
            assert!(error.help.is_some_and(|help| help.contains("auto/N")));
        }
        let error = resolve("auto", &known[..1]).expect_err("no count");
        assert!(error.message.contains("no SLURM_ARRAY_TASK_COUNT"), "{}", error.message);
        let error = resolve("auto", &[]).expect_err("no scheduler");
        assert!(error.message.contains("no task of a Slurm array"), "{}", error.message);
        let error = resolve("auto", &[("JOB_COMPLETION_INDEX", "1")]).expect_err("no count");
        assert!(error.message.contains("does not say how many"), "{}", error.message);
        let error = resolve("auto", &[("SLURM_ARRAY_TASK_ID", "x")]).expect_err("no number");
        assert_eq!(error.message, "SLURM_ARRAY_TASK_ID=x is no number from 0");
    }

    #[test]
    fn auto_of_asks_kubernetes_then_slurm() {
        let (kubernetes, slurm) = (("JOB_COMPLETION_INDEX", "2"), ("SLURM_ARRAY_TASK_ID", "7"));
        let shard = |index| Shard { index, count: 8 };
        assert_eq!(resolve("auto/8", &[slurm, kubernetes]).expect("an index"), shard(2));
        // Not from the array's first task: some tasks may run again, and keep their rows.
        let again = [slurm, ("SLURM_ARRAY_TASK_MIN", "7"), ("SLURM_ARRAY_TASK_COUNT", "1")];
        assert_eq!(resolve("auto/8", &again).expect("an id"), shard(7));
        let error = resolve("auto/7", &[slurm]).expect_err("counted from 0");
        let message = "--shard auto/7: SLURM_ARRAY_TASK_ID=7: there is no shard 7/7: ";
        assert!(error.message.starts_with(message), "{}", error.message);
        assert!(error.help.is_some_and(|help| help.ends_with("--array=0-6")));
        let error = resolve("auto/7", &[]).expect_err("no scheduler");
        assert!(error.message.contains("neither JOB_COMPLETION_INDEX nor"), "{}", error.message);
    }

    #[test]
    fn auto_asks_srun_for_its_tasks() {
        let shard = |index, count| Shard { index, count };
        let task = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")];
        assert_eq!(resolve("auto", &task).expect("a task"), shard(3, 8));
        // A step may have fewer tasks than its job.
        let of_step = [task[0], task[1], ("SLURM_STEP_NUM_TASKS", "4"), ("ENVIRONMENT", "BATCH")];
        assert_eq!(resolve("auto", &of_step).expect("a task of a step"), shard(3, 4));
        assert_eq!(resolve("auto/4", &of_step).expect("a task of a step"), shard(3, 4));
        // The script itself is no task: it would compute an eighth, and nobody the rest.
        let script = [("SLURM_PROCID", "0"), task[1], ("ENVIRONMENT", "BATCH")];
        for typed in ["auto", "auto/8"] {
            let error = resolve(typed, &script).expect_err("srun was forgotten");
            assert!(error.message.contains("`srun`"), "{}", error.message);
        }
        let error = resolve("auto/9", &task).expect_err("8 tasks");
        assert!(error.message.ends_with("nobody has the shards from 8 to 8"), "{}", error.message);
        let error = resolve("auto/3", &task).expect_err("the fourth of 3");
        assert!(error.message.starts_with("--shard auto/3: SLURM_PROCID=3: "), "{}", error.message);
        let error = resolve("auto", &[("SLURM_PROCID", "8"), task[1]]).expect_err("the ninth");
        assert!(error.message.starts_with("SLURM_PROCID=8: there is no"), "{}", error.message);
    }

    #[test]
    fn tasks_of_an_array_divide_its_shards() {
        let array = [
            ("SLURM_ARRAY_TASK_ID", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
            ("SLURM_ARRAY_TASK_MIN", "1"),
        ];
        let with = |more: &[(&'static str, &'static str)]| [&array[..], more].concat();
        let step = with(&[("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8")]);
        let shard = |index, count| Shard { index, count };
        assert_eq!(resolve("auto", &step).expect("both"), shard(8 + 5, 32));
        assert_eq!(resolve("auto/32", &step).expect("from 0"), shard(2 * 8 + 5, 32));
        let error = resolve("auto/16", &step).expect_err("too few");
        let place = "SLURM_ARRAY_TASK_ID=2, SLURM_PROCID=5 of 8: there is no shard 21/16";
        assert!(error.message.contains(place), "{}", error.message);
        let script =
            with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("ENVIRONMENT", "BATCH")]);
        assert_eq!(resolve("auto", &script).expect("the array alone"), shard(1, 4));
        let single = with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]);
        assert_eq!(resolve("auto/8", &single).expect("the array alone"), shard(2, 8));
    }
}
