//! From `--model` and `--tokenizer` to folders or GGUF files, and to an engine; what the flags came
//! to. Knows no rows, no ledger and no run.

pub mod hub;
pub mod lost_file;
pub mod resolved;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::hub::{HubEnvironment, HubError, ModelRequest, Need, Split, progress};
use self::lost_file::ON_LOST_FILE;
use self::resolved::Resolved;
use crate::args::SplitArgs;
use crate::config::{ModelSource, RunConfig};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{EngineConfig, LoadFormat, LoraConfig};
use vllm_batch_dataset::object_store;
use vllm_batch_dataset::terminal::console::{Console, ProgressMode};
use vllm_batch_dataset::terminal::error::{CliError, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::flags::with_flags;
use vllm_batch_engine::load::combinations::Sides;
use vllm_batch_engine::load::model_summary::ModelSummary;
use vllm_batch_engine::serve::data_parallel::{DataParallel, LoadEngine};
use vllm_batch_engine::serve::pooling::{PoolingEngine, PoolingSummary};
use vllm_batch_engine::serve::runner::Runner;
use vllm_batch_engine::{Engine, EngineInfo, WhyCpu};

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Configuration and weights; a GGUF file has both, and a tokenizer.
    pub model: PathBuf,
    /// What makes a GGUF file see.
    pub mmproj: Option<PathBuf>,
    /// When it is another one.
    pub tokenizer: Option<PathBuf>,
    /// Of each adapter of the configuration, in its order; the merged one stands alone.
    pub loras: Vec<PathBuf>,
}

/// What a model's small files say, by what it is for.
pub enum Summary {
    /// It completes prompts.
    Generate(Box<ModelSummary>),
    /// It makes vectors or classes.
    Pooling(Arc<PoolingSummary>),
}

/// A loaded model.
pub struct Loaded<E = Engine> {
    /// What runs it.
    pub engine: E,
    /// Its folder or GGUF file.
    pub model_dir: PathBuf,
    /// What loading took, downloads not counted.
    pub load_time: Duration,
}

/// Finds the model, and downloads what is not there.
///
/// # Errors
/// Two settings do not go together, there is no such model, or it cannot be fetched.
pub fn find(config: &RunConfig, console: &Console) -> Result<Folders, CliError> {
    Sides::of_config(&config.engine).check()?;
    let shows_progress = console.mode() != ProgressMode::None;
    let need = Need {
        config: true,
        tokenizer: config.model.tokenizer.is_none(),
        weights: config.engine.model.load_format != LoadFormat::Dummy,
        modules: config.pooling.is_some(),
        adapter: false,
    };
    let mut folders = resolve(&config.model, (need, &config.engine.lora), shows_progress)?;
    if config.model.mmproj.is_none() && !config.engine.model.language_model_only {
        folders.mmproj = hub::projector_in(Path::new(&config.model.name), &folders.model);
    }
    Ok(folders)
}

/// Loads a model that was found, by its `summary`.
///
/// # Errors
/// It cannot be loaded.
pub fn load_from(
    config: &RunConfig,
    folders: &Folders,
    summary: &ModelSummary,
) -> Result<Loaded, CliError> {
    refuse_engines(config)?;
    Loaded::by(config, folders, |config| Engine::load_summarized(config, summary))
}

/// The same of a pooling model.
///
/// # Errors
/// It cannot be loaded.
pub fn load_pooling(
    config: &RunConfig,
    folders: &Folders,
    summary: &PoolingSummary,
) -> Result<Loaded<Runner>, CliError> {
    refuse_engines(config)?;
    Loaded::by(config, folders, |config| {
        let engine = PoolingEngine::load_summarized(config, summary)?;
        Ok(Runner::Pooling(Box::new(engine)))
    })
}

/// Loads as many engines of a model as were asked for, where that is not one.
///
/// # Errors
/// One cannot be loaded, or there are not so many devices.
pub fn load_engines(
    config: &RunConfig,
    folders: &Folders,
    summary: &Arc<Summary>,
) -> Result<Loaded<Runner>, CliError> {
    let summary = Arc::clone(summary);
    let load: LoadEngine = Arc::new(move |config, shared| match &*summary {
        Summary::Generate(summary) => {
            Ok(Runner::Generate(Box::new(Engine::load_with(config, summary, shared)?)))
        }
        Summary::Pooling(summary) => {
            let processor = shared.map(|shared| shared.input_processor);
            Ok(Runner::Pooling(Box::new(PoolingEngine::load_with(config, summary, processor)?)))
        }
    });
    Loaded::by(config, folders, |config| {
        Ok(Runner::Parallel(Box::new(DataParallel::load(config, &load)?)))
    })
}

/// Whether rows are shared between engines.
pub fn has_engines(config: &RunConfig) -> bool {
    config.engine.parallel.has_engines()
}

/// # Errors
/// More engines than one were asked for.
fn refuse_engines(config: &RunConfig) -> Result<(), CliError> {
    match has_engines(config) {
        false => Ok(()),
        true => {
            let message = "`bench` and `plan` measure one engine on one device: --data-parallel-size, \
                           --pipeline-parallel-size and --device cuda:all are not for them";
            Err(CliError::refused("flag", message).help("leave it out"))
        }
    }
}

/// The engine's configuration, with the folders that were found.
fn engine_config(config: &RunConfig, folders: &Folders) -> EngineConfig {
    let mut engine_config = config.engine.clone();
    engine_config.model.model_dir = folders.model.clone();
    engine_config.model.mmproj = folders.mmproj.clone();
    engine_config.model.tokenizer_dir = folders.tokenizer.clone();
    engine_config.model.on_lost_file = Some(ON_LOST_FILE);
    let LoraConfig { modules, merged, .. } = &mut engine_config.lora;
    for (module, dir) in modules.iter_mut().chain(merged).zip(&folders.loras) {
        module.dir.clone_from(dir);
    }
    engine_config
}

/// Reads what a model says before its weights are read.
///
/// # Errors
/// A file is missing or corrupt, the model is not supported, or it does not have the context length
/// that was asked for.
pub fn summary(config: &RunConfig, folders: &Folders) -> Result<ModelSummary, CliError> {
    Ok(ModelSummary::read(&engine_config(config, folders).model)?)
}

/// The same of the model of a command: of a pooling model, where the command asks for one.
///
/// # Errors
/// As `summary`.
pub fn summary_for(config: &RunConfig, folders: &Folders) -> Result<Summary, CliError> {
    if config.pooling.is_none() {
        return Ok(Summary::Generate(Box::new(summary(config, folders)?)));
    }
    let summary = PoolingSummary::read(&engine_config(config, folders).model)?;
    Ok(Summary::Pooling(Arc::new(summary)))
}

/// Whether a model that completes prompts has a chat template.
///
/// # Errors
/// As `summary_for`.
pub fn has_chat_template(config: &RunConfig, folders: &Folders) -> Result<bool, CliError> {
    Ok(summary(config, folders)?.has_chat_template(&engine_config(config, folders).model)?)
}

/// Whether a model's files are those of one that makes vectors or classes.
pub fn makes_vectors(config: &RunConfig, folders: &Folders) -> bool {
    PoolingSummary::read(&engine_config(config, folders).model).is_ok()
}

impl Loaded {
    /// The same for whoever runs models of all kinds.
    pub fn into_runner(self) -> Loaded<Runner> {
        let Self { engine, model_dir, load_time } = self;
        Loaded { engine: Runner::Generate(Box::new(engine)), model_dir, load_time }
    }
}

impl<E> Loaded<E> {
    fn by(
        config: &RunConfig,
        folders: &Folders,
        load: impl FnOnce(&EngineConfig) -> Result<E, EngineError>,
    ) -> Result<Self, CliError> {
        let engine_config = engine_config(config, folders);
        let loading = Instant::now();
        let engine = load(&engine_config)?;
        Ok(Self { engine, model_dir: folders.model.clone(), load_time: loading.elapsed() })
    }

    /// Says what was loaded, and what was done otherwise than asked.
    pub fn announce(&self, info: &EngineInfo, config: &RunConfig, console: &Console) {
        if let Some(WhyCpu { reason, has_signs }) = &info.why_cpu {
            let text = with_flags(&format!("running on the CPU: {reason}"));
            match has_signs {
                true => console.note(&text),
                // Whoever has no GPU knows it.
                false => console.detail(&text),
            }
        }
        for note in &info.notes {
            console.note(&with_flags(note));
        }
        let (name, on) = (sanitized(&config.model.name), &info.device_name);
        console.note(&format!("Loaded {name} on {on} in {:.1} s", self.load_time.as_secs_f64()));
        console.detail(&sanitized(&format!("Model files: {}", self.model_dir.display())));
        console.detail(&Resolved::new(config, info).lines());
    }
}

/// Puts files of the cache in the place of inputs that are on the hub, and downloads those that are
/// not there; and objects in the place of patterns of them. With a split all inputs are datasets.
///
/// # Errors
/// There are no such files, or they cannot be fetched.
pub fn fetch_inputs(
    inputs: &mut Vec<PathBuf>,
    split: &SplitArgs,
    console: &Console,
) -> Result<(), CliError> {
    let split = split_of(inputs, split)?;
    object_store::expand(inputs).map_err(CliError::from_store)?;
    let is_on_hub = |name: &&str| split.is_some() || hub::is_on_hub(name);
    let name_of = |input: &PathBuf| input.to_str().filter(is_on_hub).map(str::to_owned);
    if inputs.iter().all(|input| name_of(input).is_none()) {
        return Ok(());
    }
    let environment = HubEnvironment::from_env();
    let shows_progress = console.mode() != ProgressMode::None;
    let mut progress = if shows_progress { progress::on_stderr() } else { Box::new(()) };
    let mut found = Vec::new();
    for input in inputs.drain(..) {
        let Some(name) = name_of(&input) else {
            found.push(input);
            continue;
        };
        let files = hub::resolve_dataset(&name, split.as_ref(), &environment, progress.as_mut());
        let files = files.map_err(|error| match rejected(error) {
            // It is the input that is refused.
            CliError { exit: Exit::Model, message, help, .. } => {
                CliError { help, ..CliError::refused("dataset", message) }
            }
            error => CliError { code: "dataset", ..error },
        })?;
        let num_files = files.len();
        console.note(&sanitized(&format!("{name}: {num_files} files of the hub's cache")));
        found.extend(files);
    }
    *inputs = found;
    Ok(())
}

/// The split that is meant.
///
/// # Errors
/// It is of no dataset.
fn split_of(inputs: &[PathBuf], args: &SplitArgs) -> Result<Option<Split>, CliError> {
    let Some(name) = args.split.clone() else { return Ok(None) };
    let help = "give a dataset of the hub: --split train -i OWNER/NAME";
    if inputs.is_empty() {
        return Err(CliError::refused("dataset", "--split without --input").help(help));
    }
    match inputs.iter().find(|input| input.exists() || *input == Path::new("-")) {
        Some(file) => {
            let message = format!("--split is of a dataset, and {} is none", file.display());
            Err(CliError::refused("dataset", sanitized(&message)).help(help))
        }
        None => Ok(Some(Split { name, subset: args.subset.clone() })),
    }
}

/// Finds the folders; downloads what is not there.
fn resolve(
    source: &ModelSource,
    (need, adapters): (Need, &LoraConfig),
    shows_progress: bool,
) -> Result<Folders, CliError> {
    let environment = HubEnvironment::from_env();
    let mut progress = if shows_progress { progress::on_stderr() } else { Box::new(()) };
    let mut folder = |name: &str, revision: Option<&str>, need: Need| {
        let download_dir = source.download_dir.as_deref();
        let request = ModelRequest { name, revision, download_dir, need };
        hub::resolve(&request, &environment, progress.as_mut()).map_err(rejected)
    };
    let model = folder(&source.name, source.revision.as_deref(), need)?;
    let mmproj = match &source.mmproj {
        Some(name) => Some(projector(name, folder(name, None, Need::MODEL))?),
        None => None,
    };
    let tokenizer = match &source.tokenizer {
        // `--revision` is the model's.
        Some(name) => Some(folder(name, None, Need::TOKENIZER)?),
        None => None,
    };
    let of_images = adapters.of_images.map(|lora| lora.0 as usize);
    let modules = adapters.modules.iter().chain(&adapters.merged).enumerate();
    let loras = modules.map(|(index, module)| {
        let dir = module.dir.to_string_lossy();
        folder(&dir, None, Need::ADAPTER).map_err(|error| {
            let flag = match of_images == Some(index) {
                true => "--default-mm-loras".to_owned(),
                false => format!("--lora-modules {}", module.name),
            };
            let message = sanitized(&format!("{flag}: {}", error.message));
            CliError { message, ..error }
        })
    });
    let loras = loras.collect::<Result<_, _>>()?;
    Ok(Folders { model, mmproj, tokenizer, loras })
}

/// The file of `--mmproj`.
fn projector(name: &str, found: Result<PathBuf, CliError>) -> Result<PathBuf, CliError> {
    let of_flag = |message: &str| sanitized(&format!("--mmproj: {message}"));
    match found {
        Ok(path) if path.is_file() => Ok(path),
        Ok(_) => {
            let message = of_flag(&format!("{name} is no GGUF file"));
            let help = "give the model's mmproj file, or one of a repository: OWNER/REPO:FILE.gguf";
            Err(CliError::refused("mmproj", message).help(help))
        }
        Err(error) => Err(CliError { message: of_flag(&error.message), ..error }),
    }
}

fn rejected(error: HubError) -> CliError {
    let exit = match error.exit_code() {
        7 => Exit::Model,
        5 => Exit::Stopped,
        _ => Exit::Refused,
    };
    CliError::new(exit, error.code(), error.to_string()).help(error.help())
}
