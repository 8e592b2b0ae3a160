//! `LoadedModel`: a model on its device, on several ranks, or in stages.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::EngineInfo;
use crate::execute::draft_executor::{DraftToLoad, LoadedDraft};
use crate::execute::executor::Executor;
use crate::execute::model_executor::ModelExecutor;
use crate::execute::model_facts::ModelFacts;
use crate::execute::pipeline::{StagedExecutor, Stages};
use crate::execute::tensor_parallel;
use crate::load::model_summary::ModelSummary;
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_device::{Device, WhyCpu};

/// A model that is loaded, and what is known of it.
pub(crate) struct LoadedModel {
    /// Where steps are sampled.
    pub(crate) device: Arc<Device>,
    executor: LoadedExecutor,
    pub(crate) draft: Option<LoadedDraft>,
    /// Those that other engines may share.
    pub(crate) stages: Option<Arc<Stages>>,
    /// The tokens of a step that is queued ahead are where the next one reads them.
    pub(crate) may_run_ahead: bool,
    facts: ModelFacts,
}

/// Who runs its steps.
enum LoadedExecutor {
    OnDevice(Box<ModelExecutor>),
    InStages(StagedExecutor),
}

impl LoadedModel {
    /// Loads it as the configuration says; `stages` are those of another engine of the model.
    ///
    /// # Errors
    /// Its files are corrupt, or a device or its memory does not suffice.
    pub(crate) fn load(
        config: &EngineConfig,
        sizes: &StepSizes,
        summary: &ModelSummary,
        stages: Option<Arc<Stages>>,
        given_up: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        if config.parallel.num_stages() > 1 {
            let stages = match stages {
                Some(stages) => stages,
                None => Arc::new(Stages::load(config, sizes, summary, given_up)?),
            };
            return Self::in_stages(config, stages);
        }
        if config.parallel.num_ranks() > 1 {
            let (device, executor) = tensor_parallel::load(config, sizes, summary, given_up)?;
            return Ok(Self::on_device(config, summary, (device, None), (executor, None)));
        }
        let draft = DraftToLoad::read(config, sizes, summary)?;
        let needs = summary.gpu_needs();
        let (device, why_cpu) = needs.open_device(config, summary.dtype)?;
        summary.sides(config).check_on(&device, why_cpu.as_ref())?;
        let device = Arc::new(device);
        let beside = draft.as_ref().map(|draft| draft.beside(config, &device));
        let (config, on) = (beside.as_ref().unwrap_or(config), Arc::clone(&device));
        let executor = ModelExecutor::load(config, sizes, summary, on, given_up)?;
        let (num_blocks, on) = (executor.cache_shape().num_blocks, Arc::clone(&device));
        let draft = draft.map(|draft| draft.load(num_blocks, on, given_up)).transpose()?;
        Ok(Self::on_device(config, summary, (device, why_cpu), (executor, draft)))
    }

    fn on_device(
        config: &EngineConfig,
        summary: &ModelSummary,
        (device, why_cpu): (Arc<Device>, Option<WhyCpu>),
        (mut executor, draft): (ModelExecutor, Option<LoadedDraft>),
    ) -> Self {
        let element_bytes = config.cache.kv_cache_dtype.size_bytes(summary.dtype);
        let mut facts = ModelFacts::of(&mut executor, &device, element_bytes);
        facts.why_cpu = why_cpu;
        if executor.num_ranks() > 1 {
            facts.device_name =
                format!("{} x {}, one model", executor.num_ranks(), facts.device_name);
        }
        if let Some(draft) = &draft {
            facts.weight_bytes += draft.weight_bytes;
            facts.kv_cache_bytes += draft.kv_cache_bytes;
        }
        let may_run_ahead = device.runs_ahead() && executor.num_ranks() == 1;
        let executor = LoadedExecutor::OnDevice(Box::new(executor));
        Self { device, executor, draft, stages: None, may_run_ahead, facts }
    }

    fn in_stages(config: &EngineConfig, stages: Arc<Stages>) -> Result<Self, EngineError> {
        let facts = stages.facts().clone();
        let executor = StagedExecutor::new(Arc::clone(&stages), config.cache.pool)?;
        Ok(Self {
            device: stages.device(),
            executor: LoadedExecutor::InStages(executor),
            draft: None,
            stages: Some(stages),
            may_run_ahead: false,
            facts,
        })
    }

    /// Whether blocks have the states of recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.facts.has_states
    }

    /// Who runs its steps, in which there may be media of this table.
    pub(crate) fn into_executor(self, media: Option<&Arc<MediaTable>>) -> Box<dyn Executor> {
        match self.executor {
            LoadedExecutor::OnDevice(mut executor) => {
                if let Some(table) = media {
                    executor.set_media_table(Arc::clone(table));
                }
                executor
            }
            LoadedExecutor::InStages(executor) => {
                if let Some(table) = media {
                    executor.set_media_table(Arc::clone(table));
                }
                Box::new(executor)
            }
        }
    }

    /// What was loaded, of a model that is computed by steps of these sizes.
    pub(crate) fn info(
        &mut self,
        config: &EngineConfig,
        summary: &ModelSummary,
        step_sizes: StepSizes,
    ) -> EngineInfo {
        let facts = &mut self.facts;
        EngineInfo {
            dtype: summary.dtype,
            checkpoint_format: summary.checkpoint_format(),
            kernel_set: config.lora.kernel_set(&facts.kernels.name()),
            device_name: std::mem::take(&mut facts.device_name),
            why_cpu: facts.why_cpu.take(),
            notes: std::mem::take(&mut facts.notes),
            num_threads: facts.num_threads,
            max_model_len: summary.max_model_len,
            weight_bytes: facts.weight_bytes,
            code_bytes: Arc::clone(&facts.code_bytes),
            parameters: summary.parameters(),
            num_cache_tokens: facts.num_blocks * facts.block_size,
            block_size: facts.block_size,
            kv_cache_bytes: facts.kv_cache_bytes,
            num_offloaded_tokens: facts.num_host_blocks * facts.block_size,
            lora_ranks: std::mem::take(&mut facts.lora_ranks),
            step_sizes,
        }
    }
}
