//! Progress on standard error: counters that the threads of a run raise, and a thread that shows
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::meter::Meter;
use vllm_batch_base::machine;
use vllm_batch_dataset::input::row_error::NotRun;
use vllm_batch_dataset::terminal::console::{Console, ProgressMode};
use vllm_batch_dataset::terminal::style::Style;
use vllm_batch_engine::stats::EngineStats;

/// A line that is not redrawn comes this often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// tqdm's `mininterval`.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

const UNKNOWN: u64 = u64::MAX;

/// What the threads of a run report. Each counter has one writer.
#[derive(Debug)]
pub struct Counters {
    rows_done: AtomicU64,
    rows_reused: AtomicU64,
    rows_failed: AtomicU64,
    /// Of those, rows that were given up.
    rows_not_run: AtomicU64,
    /// Since the start, without failed rows.
    rows_answered: AtomicU64,
    rows_total: AtomicU64,
    input_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// Of rows that are done.
    done_tokens: AtomicU64,
    max_tokens: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    kv_percent: AtomicU64,
    images: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            rows_done: zero(),
            rows_reused: zero(),
            rows_failed: zero(),
            rows_not_run: zero(),
            rows_answered: zero(),
            rows_total: AtomicU64::new(UNKNOWN),
            input_tokens: zero(),
            output_tokens: zero(),
            done_tokens: zero(),
            max_tokens: AtomicU64::new(UNKNOWN),
            running: zero(),
            waiting: zero(),
            kv_percent: zero(),
            images: zero(),
        }
    }
}

impl Counters {
    /// A row was written, with an answer of `output_tokens` tokens.
    pub fn row_done(&self, output_tokens: u64) {
        self.done_tokens.fetch_add(output_tokens, Relaxed);
        self.rows_answered.fetch_add(1, Relaxed);
        self.rows_done.fetch_add(1, Relaxed);
    }

    /// An error row was written.
    pub fn row_failed(&self, code: &str) {
        self.rows_failed.fetch_add(1, Relaxed);
        self.rows_not_run.fetch_add(NotRun::of_code(code).is_some().into(), Relaxed);
        self.rows_done.fetch_add(1, Relaxed);
    }

    /// A row was taken over from an earlier run: it is done, and says nothing about speed.
    pub fn row_reused(&self, code: Option<&str>) {
        self.rows_reused.fetch_add(1, Relaxed);
        match code {
            Some(code) => self.row_failed(code),
            None => _ = self.rows_done.fetch_add(1, Relaxed),
        }
    }

    /// Rows that were answered, and rows that failed, without those that were given up.
    pub fn counts(&self) -> (u64, u64) {
        let (not_run, failed) = (self.rows_not_run.load(Relaxed), self.rows_failed.load(Relaxed));
        let done = self.rows_done.load(Relaxed);
        (done.saturating_sub(failed), failed.saturating_sub(not_run))
    }

    /// The longest that answers of rows can be, in tokens.
    pub fn set_max_tokens(&self, tokens: u64) {
        self.max_tokens.store(tokens, Relaxed);
    }

    /// The input has been read to its end: this many rows.
    pub fn set_total(&self, rows: u64) {
        self.rows_total.store(rows, Relaxed);
    }

    /// Rows of the input, if it is known.
    pub fn total(&self) -> Option<u64> {
        Some(self.rows_total.load(Relaxed)).filter(|total| *total != UNKNOWN)
    }

    /// The engine after a step.
    pub fn set_engine(&self, stats: &EngineStats) {
        // Prompt tokens that are done: computed or found in the cache. Recomputation after a
        // preemption counts again; the summary has the exact number.
        let prompt = stats.num_computed_tokens.saturating_sub(stats.num_generation_tokens);
        self.input_tokens.store(prompt + stats.num_cached_tokens, Relaxed);
        self.output_tokens.store(stats.num_generation_tokens, Relaxed);
        self.running.store(stats.num_running as u64, Relaxed);
        self.waiting.store(stats.num_waiting as u64, Relaxed);
        self.images.store(stats.images.num_encoded, Relaxed);
        // Some engines have no cache.
        let percent = (stats.num_used_blocks * 100).checked_div(stats.num_blocks);
        self.kv_percent.store(percent.map_or(UNKNOWN, |percent| percent as u64), Relaxed);
    }

    fn kv_percent(&self) -> Option<u64> {
        Some(self.kv_percent.load(Relaxed)).filter(|percent| *percent != UNKNOWN)
    }

    fn meter(&self, elapsed: Duration) -> Meter {
        let seconds = elapsed.as_secs_f64();
        Meter {
            done: self.rows_done.load(Relaxed),
            initial: self.rows_reused.load(Relaxed),
            failed: self.rows_failed.load(Relaxed),
            answered: self.rows_answered.load(Relaxed),
            total: self.total(),
            elapsed: seconds,
            input_speed: self.input_tokens.load(Relaxed) as f64 / seconds.max(1e-9),
            output_speed: self.output_tokens.load(Relaxed) as f64 / seconds.max(1e-9),
            output_tokens: (self.output_tokens.load(Relaxed), self.done_tokens.load(Relaxed)),
            max_tokens: Some(self.max_tokens.load(Relaxed)).filter(|tokens| *tokens != UNKNOWN),
        }
    }

    fn line(&self, elapsed: Duration, columns: Option<usize>, style: Style) -> String {
        let (running, waiting) = (self.running.load(Relaxed), self.waiting.load(Relaxed));
        let kv = self.kv_percent().map(|percent| format!(" kv {percent}%")).unwrap_or_default();
        let images = Some(self.images.load(Relaxed)).filter(|images| *images > 0);
        let images = images.map(|images| format!(" images {images}")).unwrap_or_default();
        let load = format!("running {running} waiting {waiting}{kv}{images}");
        self.meter(elapsed).line(columns, &load, style)
    }

    fn json(&self, elapsed: Duration) -> String {
        let meter = self.meter(elapsed);
        serde_json::json!({
            "event": "progress",
            "elapsed_time": meter.elapsed,
            "rows_done": meter.done,
            "rows_failed": meter.failed,
            "rows_total": meter.total,
            "rows_reused": meter.initial,
            "estimated_seconds_left": meter.remaining(),
            "requests_per_second": meter.rate(),
            "input_tokens_per_second": meter.input_speed,
            "output_tokens_per_second": meter.output_speed,
            "running": self.running.load(Relaxed),
            "waiting": self.waiting.load(Relaxed),
            "kv_cache_usage_percent": self.kv_percent(),
            "images_encoded": self.images.load(Relaxed),
        })
        .to_string()
    }
}

/// The thread that shows progress, until it is stopped.
#[derive(Debug)]
pub struct Progress {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Starts to show the counters; also once whenever `asked` is set.
    pub fn start(console: Console, counters: Arc<Counters>, asked: Arc<AtomicBool>) -> Self {
        let (stop, stopped) = channel();
        let started = Instant::now();
        let show = move || {
            let interval = interval(console.mode());
            let tick = interval.map_or(BAR_INTERVAL, |interval| interval.min(BAR_INTERVAL));
            let mut due = interval;
            while stopped.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
                let elapsed = started.elapsed();
                if asked.swap(false, Relaxed) {
                    show_once(&console, &counters, elapsed);
                }
                if let Some((at, interval)) = due.zip(interval).filter(|(at, _)| elapsed >= *at) {
                    show(&console, &counters, elapsed);
                    // Those that were missed are not made up for.
                    due = Some((at + interval).max(elapsed));
                }
            }
            if console.mode() == ProgressMode::Bar {
                let columns = Some(console.columns());
                console.finish_bar(&counters.line(started.elapsed(), columns, console.style()));
            } else if console.mode() == ProgressMode::Json {
                show_json(&console, &counters, started.elapsed());
            }
        };
        Self { stop, thread: machine::started(std::thread::Builder::new().spawn(show)) }
    }

    /// Shows the last state and ends.
    pub fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

fn interval(mode: ProgressMode) -> Option<Duration> {
    match mode {
        ProgressMode::Bar => Some(BAR_INTERVAL),
        ProgressMode::Plain => Some(PLAIN_INTERVAL),
        ProgressMode::Json => Some(JSON_INTERVAL),
        ProgressMode::None => None,
    }
}

fn show(console: &Console, counters: &Counters, elapsed: Duration) {
    match console.mode() {
        ProgressMode::Bar => {
            let columns = console.columns();
            console.draw_bar(counters.line(elapsed, Some(columns), console.style()), columns);
        }
        ProgressMode::Plain => console.print(&counters.line(elapsed, None, console.style())),
        ProgressMode::Json => show_json(console, counters, elapsed),
        ProgressMode::None => {}
    }
}

/// A line of its own, however quiet the rest is: somebody has asked for it.
fn show_once(console: &Console, counters: &Counters, elapsed: Duration) {
    match console.mode() {
        ProgressMode::Json => show_json(console, counters, elapsed),
        _ => console.print(&counters.line(elapsed, None, console.style())),
    }
}

fn show_json(console: &Console, counters: &Counters, elapsed: Duration) {
    console.print(&counters.json(elapsed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_engine::stats::ImageStats;

    fn counters() -> Counters {
        let counters = Counters::default();
        counters.set_engine(&EngineStats {
            num_running: 64,
            num_waiting: 512,
            num_blocks: 1000,
            num_used_blocks: 599,
            num_computed_tokens: 900,
            num_cached_tokens: 200,
            num_generation_tokens: 100,
            ..EngineStats::default()
        });
        counters.row_done(100);
        counters
    }

    #[test]
    fn the_line_ends_with_the_engines_load() {
        let line = counters().line(Duration::from_secs(10), None, Style::plain());
        assert_eq!(
            line,
            "1 row [00:10, 10.00 s/row, out 10 tok/s, in 100 tok/s, running 64 waiting 512 kv 59%]"
        );
    }

    #[test]
    fn an_engine_without_a_cache_shows_none() {
        let counters = Counters::default();
        counters.set_engine(&EngineStats { num_waiting: 3, ..EngineStats::default() });
        let line = counters.line(Duration::from_secs(10), None, Style::plain());
        assert!(line.ends_with(", running 0 waiting 3]"), "{line}");
        let images = ImageStats { num_images: 9, num_encoded: 7, ..ImageStats::default() };
        counters.set_engine(&EngineStats { images, ..EngineStats::default() });
        let line = counters.line(Duration::from_secs(10), None, Style::plain());
        assert!(line.ends_with(", running 0 waiting 0 images 7]"), "{line}");
    }

    #[test]
    fn json_has_nulls_where_nothing_is_known() {
        let value: serde_json::Value =
            serde_json::from_str(&counters().json(Duration::from_secs(10))).unwrap();
        assert_eq!(value["rows_total"], serde_json::Value::Null);
        assert_eq!(value["rows_done"], 1);
        assert_eq!(value["kv_cache_usage_percent"], 59);
        let counters = counters();
        counters.row_failed("bad_json");
        counters.row_reused(Some("batch_cancelled"));
        counters.set_total(4);
        let value: serde_json::Value =
            serde_json::from_str(&counters.json(Duration::from_secs(10))).unwrap();
        assert_eq!((&value["rows_total"], &value["requests_per_second"]), (&4.into(), &0.2.into()));
        assert_eq!((&value["rows_failed"], &value["rows_reused"]), (&2.into(), &1.into()));
        // The one answer has 100 tokens at 10 a second, so the row that is left has 100 more.
        assert_eq!(value["estimated_seconds_left"].as_f64(), Some(10.0));
    }
}
