//! An output that is an object: the run writes files in a folder of this machine, as any run, and
//! puts them into the store at its end. Meanwhile its journal is kept there in pieces, so that
//! another machine goes on where this one was lost.
//!
//! Beside `KEY` are `KEY.meta.json`, and while the run goes on `KEY.journal/`: locks, signs of life
//! and pieces. The object itself appears whole, and only where none is.

pub mod lease;
pub mod mirror;
pub mod segments;

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use self::lease::{Claimant, Lease};
use self::mirror::{Keeper, KeeperThread};
use super::error::LedgerError;
use super::files::side_file_of;
use super::meta::{FileFacts, Meta};
use super::output::{part_of, with_suffix};
use super::storage::Storage;
use crate::args::OutputArgs;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::network::hex;
use vllm_batch_dataset::object_store::{
    ErrorKind as Kind, Facts, Object, ObjectName, Place, Store, StoreError,
};
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;

/// How often the journal's new bytes become a piece, unless a flag says it.
const EVERY: u64 = 10;

/// How often an object is replaced that comes from a run whose lease is lost.
const MAX_REPLACED: usize = 8;

/// Files of the folder that are no output's.
const LOCK: &str = ".vllm-batch-lock";
const OWNER: &str = ".vllm-batch-owner";

/// An output that is to be an object, and its folder.
#[derive(Clone, Debug)]
pub struct Staged {
    name: ObjectName,
    folder: PathBuf,
    takes_over: bool,
    /// Seconds.
    every: u64,
    /// What is there is replaced.
    replaces: bool,
}

impl Staged {
    /// Puts a file in the place of an output that is an object. None: it is a file.
    ///
    /// # Errors
    /// A flag does not go with it, or the folder cannot be made.
    pub fn of(args: &mut OutputArgs) -> Result<Option<Self>, CliError> {
        let name = args.out.as_deref().map(ObjectName::of).transpose();
        let Some(name) = name.map_err(CliError::from_store)?.flatten() else {
            return refuse_own_flags(args).map(|()| None);
        };
        refuse_others(args)?;
        let file = name.file_name();
        if matches!(file, "" | "." | ".." | LOCK | OWNER) {
            let message = format!("--out {name}: its last part is no name of a file");
            return Err(CliError::refused("output", message));
        }
        let folder = args.work_dir.take().unwrap_or_else(|| default_folder(&name));
        fs::create_dir_all(&folder).map_err(|error| {
            let message = format!("cannot make the folder {}: {error}", folder.display());
            CliError::refused("output", message).help("give another: --work-dir DIR")
        })?;
        args.out = Some(folder.join(file));
        let replaces = args.overwrite || args.retry_failed;
        Ok(Some(Self {
            name,
            folder,
            takes_over: args.take_over,
            every: args.journal_interval.unwrap_or(EVERY),
            replaces,
        }))
    }

    /// Refuses to replace an input.
    ///
    /// # Errors
    /// The output is one.
    pub fn refuse_read(&self, sources: &Sources) -> Result<(), CliError> {
        let name = self.name.to_string();
        match sources.list().iter().any(|source| source.name == name) {
            false => Ok(()),
            true => {
                let message = format!("{name} is the input: --out would replace it");
                Err(CliError::refused("output", message).help("choose another name"))
            }
        }
    }

    /// The file that becomes the object.
    fn out(&self) -> PathBuf {
        self.folder.join(self.name.file_name())
    }

    fn journal(&self) -> PathBuf {
        with_suffix(&self.out(), ".journal")
    }

    /// Files, and the objects that they become.
    fn pairs(&self) -> [(PathBuf, ObjectName); 3] {
        let out = self.out();
        let beside = |suffix: &str| (with_suffix(&out, suffix), self.name.with_suffix(suffix));
        [(out.clone(), self.name.clone()), beside(".errors.jsonl"), beside(".meta.json")]
    }

    /// Takes the output for this run, and brings what earlier ones left to this machine.
    ///
    /// # Errors
    /// Another run has it, something else has its name, or the store cannot be reached.
    pub fn begin(self, overwrite: bool, console: &Console) -> Result<Remote, CliError> {
        let store = Store::from_env().map(Arc::new).map_err(CliError::from_store)?;
        let lock = self.lock_folder()?;
        let owner = self.owner().map_err(CliError::from_store)?;
        let told = Some(console.clone());
        let claimant = Claimant { console: told, ..Claimant::new(owner, self.takes_over) };
        let remote = Remote::begin(self, store, &claimant, overwrite);
        let (mut remote, keeper) = remote.map_err(CliError::from_store)?;
        remote.lock = Some(lock);
        remote.keep(keeper, console);
        Ok(remote)
    }

    fn lock_folder(&self) -> Result<File, CliError> {
        let path = self.folder.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let failed = |error| LedgerError::of("lock the work folder", error).at_start();
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(LedgerError::Locked(self.folder.clone()).at_start())
            }
            _ => Ok(file),
        }
    }

    /// What this folder's runs are called.
    fn owner(&self) -> Result<String, StoreError> {
        let path = self.folder.join(OWNER);
        if let Ok(owner) = fs::read_to_string(&path)
            && owner.len() == 32
        {
            return Ok(owner);
        }
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).map_err(|_| {
            StoreError::disk("name this run", &io::Error::other("the system gives no random bytes"))
        })?;
        let owner = hex(&bytes);
        let written = fs::write(&path, &owner);
        written.map_err(|error| StoreError::disk(format!("write {}", path.display()), &error))?;
        Ok(owner)
    }
}

/// Refuses flags that are for objects alone.
fn refuse_own_flags(args: &OutputArgs) -> Result<(), CliError> {
    let typed = [
        ("--work-dir", args.work_dir.is_some()),
        ("--take-over", args.take_over),
        ("--journal-interval", args.journal_interval.is_some()),
    ];
    match typed.iter().find(|(_, is_typed)| *is_typed) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!("{flag} goes with --out s3://BUCKET/KEY, and not with a file");
            Err(CliError::refused("output", message))
        }
    }
}

/// Refuses files beside an output that is an object.
fn refuse_others(args: &OutputArgs) -> Result<(), CliError> {
    let typed = [("--journal", args.journal.is_some()), ("--errors", args.errors.is_some())];
    match typed.iter().find(|(_, is_typed)| *is_typed) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!(
                "{flag} does not go with --out s3://...: another machine that \
                                   continues would not have it"
            );
            Err(CliError::refused("output", message))
        }
    }
}

/// Where an object's files are unless a flag says it.
#[expect(clippy::disallowed_methods, reason = "XDG's variable says where caches are")]
fn default_folder(name: &ObjectName) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty());
    let home = || std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".cache");
    let cache = cache.map_or_else(home, PathBuf::from);
    let key = blake3::hash(name.to_string().as_bytes()).to_hex();
    cache.join("vllm-batch/outputs").join(&key[..16])
}

/// An output that this run writes.
pub struct Remote {
    staged: Staged,
    store: Arc<Store>,
    lease: Arc<Lease>,
    prefix: ObjectName,
    files: Arc<dyn Storage>,
    thread: Mutex<Option<KeeperThread>>,
    /// The output may replace one that is there.
    replaces: AtomicBool,
    /// ETags of the objects that were there when the lease was taken, by key.
    seen: HashMap<String, String>,
    /// Held, that is all.
    lock: Option<File>,
}

impl Remote {
    /// Takes the lease, and brings what earlier runs left to the folder.
    ///
    /// # Errors
    /// As `Staged::begin`.
    pub fn begin(
        staged: Staged,
        store: Arc<Store>,
        claimant: &Claimant,
        overwrite: bool,
    ) -> Result<(Self, Keeper), StoreError> {
        let prefix = staged.name.with_suffix(".journal/");
        let lease = Arc::new(Lease::take(&store, &prefix, claimant)?);
        let fetched = staged.fetch(&store, &prefix, &lease, overwrite);
        let (kept, seen) = match fetched.and_then(|kept| Ok((kept, staged.seen(&store)?))) {
            Ok(fetched) => fetched,
            Err(error) => {
                let _ = lease.leave();
                return Err(error);
            }
        };
        let (keeper, files) = Keeper::new(
            Arc::clone(&store),
            Arc::clone(&lease),
            prefix.clone(),
            &staged.journal(),
            kept,
        );
        let (files, thread, replaces) = (Arc::new(files), Mutex::default(), staged.replaces.into());
        let lock = None;
        let remote = Self { staged, store, lease, prefix, files, thread, replaces, seen, lock };
        Ok((remote, keeper))
    }

    fn keep(&self, keeper: Keeper, console: &Console) {
        let every = Duration::from_secs(self.staged.every);
        let thread = keeper.start(every, console.clone());
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// The files of the run.
    pub fn files(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.files)
    }

    /// Says that the run to be continued may replace what is there.
    pub fn replaces(&self) {
        self.replaces.store(true, Ordering::Relaxed);
    }

    fn end_thread(&self) -> Option<Keeper> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.map(KeeperThread::end)
    }

    /// Ends a run that is not complete: what is finished is kept, and the next run need not wait.
    pub fn leave(&self, console: &Console) {
        let kept = self.end_thread().map_or(Ok(()), |mut keeper| keeper.keep());
        if let Err(error) = kept.and_then(|()| self.lease.leave()) {
            console.warn(&format!("{error}; rows since then are on this machine only"));
        }
    }

    /// Ends a run whose files are complete: they become objects, and what led to them goes.
    ///
    /// # Errors
    /// Another run was faster, or they cannot be written. The same command does the rest.
    pub fn publish(&self, console: &Console) -> Result<(), CliError> {
        drop(self.end_thread());
        self.upload().map_err(CliError::from_store_midway)?;
        console.note(&format!("Uploaded {}", self.staged.name));
        self.clean().map_err(|error| {
            let error = CliError::from_store_midway(error);
            error.help("the output is complete; the same command removes what is left")
        })
    }

    /// Puts the files into the store, the one that others wait for before the one beside it.
    ///
    /// # Errors
    /// As `publish`.
    pub fn upload(&self) -> Result<(), StoreError> {
        self.lease.check()?;
        let out = self.staged.out();
        let unread = |error| StoreError::disk("read the side file", &error);
        let meta = Meta::beside(&out).map_err(unread)?;
        let facts = [Some(&meta.output), meta.errors.as_ref().map(|errors| &errors.facts), None];
        for ((path, name), facts) in self.staged.pairs().iter().zip(facts).rev() {
            // The errors first: whoever sees the output finds them.
            let Some(facts) = facts else { continue };
            self.upload_one(path, name, facts)?;
        }
        let text = fs::read(side_file_of(&out)).map_err(unread)?;
        let name = self.staged.name.with_suffix(".meta.json");
        self.replace(&name, &|place| self.store.put(&name, &text, place))
    }

    /// Puts an object in the place of the one that was there when the lease was taken. A request of
    /// an earlier run may arrive since: its object is replaced too, as long as the lease is this
    /// run's. So of two runs the one with the lease has all objects, and the other is told.
    fn replace(
        &self,
        name: &ObjectName,
        put: &dyn Fn(Place<'_>) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut etag = self.seen.get(&name.key).cloned();
        for _ in 0..MAX_REPLACED {
            let place = etag.as_deref().map_or(Place::Free, Place::Of);
            let is_put = put(place)?;
            self.lease.check()?;
            if is_put {
                return Ok(());
            }
            etag = self.store.facts(name)?.map(|facts| facts.etag);
        }
        Err(StoreError::new(Kind::Exists, format!("{name} is changed again and again"))
            .help("end the other runs that write it"))
    }

    fn upload_one(
        &self,
        path: &Path,
        name: &ObjectName,
        facts: &FileFacts,
    ) -> Result<(), StoreError> {
        let known = self.store.facts(name)?.and_then(|known| known.blake3);
        if known.as_deref() == Some(&facts.blake3) {
            return Ok(());
        }
        let file = File::open(path);
        let file =
            file.map_err(|error| StoreError::disk(format!("open {}", path.display()), &error))?;
        // Errors belong to the output, whose place says whether it is another run's.
        let is_out = *name == self.staged.name;
        let must_be_free = is_out && !self.replaces.load(Ordering::Relaxed);
        if must_be_free {
            self.store.upload(&file, name, &facts.blake3, Place::Free)?;
            return self.lease.check();
        }
        self.replace(name, &|place| match self.store.upload(&file, name, &facts.blake3, place) {
            Err(error) if error.kind() == Kind::Exists => Ok(false),
            uploaded => uploaded.map(|()| true),
        })
    }

    /// Removes the pieces, the locks and the files of this machine; what says that it is this run's
    /// goes last.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn clean(&self) -> Result<(), StoreError> {
        let listed = self.store.list(&self.prefix)?;
        let rest = |key: &str| key[self.prefix.key.len()..].to_owned();
        // Someone may have put objects of his own there.
        let is_own = |key: &str| lease::is_own(&rest(key)) || segments::is_own(&rest(key));
        let own = listed.iter().filter(|listed| is_own(&listed.key));
        let is_lock = |key: &str| rest(key).starts_with("lock-");
        let (locks, others): (Vec<_>, Vec<_>) = own.partition(|listed| is_lock(&listed.key));
        for listed in others.into_iter().chain(locks) {
            let bucket = self.prefix.bucket.clone();
            self.store.remove(&ObjectName { bucket, key: listed.key.clone() })?;
        }
        let of_run = [self.staged.journal(), self.staged.folder.join(OWNER)];
        let pairs = self.staged.pairs();
        for path in pairs.iter().map(|(path, _)| path).chain(&of_run) {
            remove(path)?;
        }
        Ok(())
    }
}

impl Staged {
    /// Brings the journal's pieces to the folder, and an output that is complete; returns how much
    /// of the journal the store has.
    fn fetch(
        &self,
        store: &Arc<Store>,
        prefix: &ObjectName,
        lease: &Lease,
        overwrite: bool,
    ) -> Result<u64, StoreError> {
        if overwrite {
            return Ok(0);
        }
        let out = self.out();
        if !lease.is_own_again {
            // Of a run that others went on with, or nobody's.
            self.forget()?;
        }
        let pieces = segments::pieces(&store.list(prefix)?, prefix);
        let is_complete = out.exists() && !self.journal().exists();
        let mut kept = 0;
        if !pieces.is_empty() && !is_complete {
            let path = self.journal();
            let journal =
                File::options().create(true).truncate(false).read(true).write(true).open(&path);
            let journal = journal
                .map_err(|error| StoreError::disk(format!("open {}", path.display()), &error))?;
            kept = segments::complete(store, &prefix.bucket, &pieces, &journal)?;
        }
        if let Some(facts) = store.facts(&self.name)? {
            self.fetch_complete(store, lease, &facts)?;
        }
        Ok(kept)
    }

    /// Brings an output that is complete to the folder: the run looks whether it is its own.
    fn fetch_complete(
        &self,
        store: &Arc<Store>,
        lease: &Lease,
        facts: &Facts,
    ) -> Result<(), StoreError> {
        let own = Meta::beside(&self.out()).ok();
        let Some(blake3) = &facts.blake3 else {
            let message = format!("{} exists, and no run of this program made it", self.name);
            return Err(StoreError::new(Kind::Exists, message)
                .help("choose another --out, or replace it with --overwrite"));
        };
        if own.is_some_and(|meta| meta.output.blake3 == *blake3) {
            return Ok(());
        }
        // A run ended between the output and the side file. This one makes both again, from the
        // pieces that there are, and finds that the output is there.
        let side_file = self.name.with_suffix(".meta.json");
        if lease.follows_another() && store.facts(&side_file)?.is_none() {
            return Ok(());
        }
        for (path, name) in self.pairs() {
            remove(&path)?;
            if store.facts(&name)?.is_none() {
                continue;
            }
            let mut file = File::create(&path)
                .map_err(|error| StoreError::disk(format!("make {}", path.display()), &error))?;
            Object::new(Arc::clone(store), name).write_to(&mut file)?;
        }
        Ok(())
    }

    /// ETags of the objects that the run's take the place of, by key.
    fn seen(&self, store: &Store) -> Result<HashMap<String, String>, StoreError> {
        let mut seen = HashMap::new();
        for (_, name) in self.pairs() {
            if let Some(facts) = store.facts(&name)? {
                seen.insert(name.key, facts.etag);
            }
        }
        Ok(seen)
    }

    /// Removes what runs left in the folder.
    fn forget(&self) -> Result<(), StoreError> {
        let out = self.out();
        let errors = with_suffix(&out, ".errors.jsonl");
        let parts = [part_of(&out), part_of(&errors), self.journal()];
        let pairs = self.pairs();
        parts.iter().chain(pairs.iter().map(|(path, _)| path)).try_for_each(|path| remove(path))
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::disk(format!("remove {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}
