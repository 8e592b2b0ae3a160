//! `Lease`: the right to write an object's output, of one run at a time.
//!
//! Locks are numbered objects that must not exist when they are put: whoever makes the next one has
//! the lease from then on, and the one before notices it. So no clock is asked who is right. What
//! tells a run that is dead from one that works is a sign of life that changes: who wants the lease
//! looks at it for a while by its own clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vllm_batch_dataset::object_store::{ErrorKind, ObjectName, Place, Store, StoreError};
use vllm_batch_dataset::terminal::console::Console;

/// How often a run that works gives a sign of life.
pub const BEAT: Duration = Duration::from_secs(15);

/// How long a run without one is looked at before it counts as dead: several signs long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);

/// The last sign of a run that ended by itself.
const LEFT: &[u8] = b"left";

/// Who asks for a lease, and how.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// Its name, no other's.
    pub owner: String,
    /// It does not wait: the user says that the other run is dead.
    pub takes_over: bool,
    /// How long it looks at a run that gives no sign, and how often.
    pub watch: (Duration, Duration),
    /// Who learns that it looks.
    pub console: Option<Console>,
}

impl Claimant {
    /// One that waits as long as it takes.
    pub fn new(owner: String, takes_over: bool) -> Self {
        Self { owner, takes_over, watch: (PATIENCE, LOOK), console: None }
    }
}

/// A lease that was taken.
pub struct Lease {
    store: Arc<Store>,
    prefix: ObjectName,
    epoch: u32,
    /// The last one was this owner's too.
    pub is_own_again: bool,
    beats: AtomicU64,
}

impl Lease {
    /// Takes the lease on what is under a prefix.
    ///
    /// # Errors
    /// Another run has it and works, or the store does not keep conditions.
    pub fn take(
        store: &Arc<Store>,
        prefix: &ObjectName,
        claimant: &Claimant,
    ) -> Result<Self, StoreError> {
        let newest = newest(store, prefix)?;
        let mut is_own_again = false;
        if let Some(epoch) = newest {
            let owner = store.get(&lock(prefix, epoch))?;
            is_own_again = owner.as_deref() == Some(claimant.owner.as_bytes());
            if !is_own_again && !claimant.takes_over && is_alive(store, prefix, epoch, claimant)? {
                return Err(taken(prefix));
            }
        }
        let epoch = newest.unwrap_or(0) + 1;
        let name = lock(prefix, epoch);
        if !store.put(&name, claimant.owner.as_bytes(), Place::Free)? {
            return Err(taken(prefix));
        }
        if store.put(&name, b"another", Place::Free)? {
            store.remove(&name)?;
            let message = format!("{name}: the store replaces objects that must not be replaced");
            return Err(StoreError::new(ErrorKind::Access, message).help(
                "it does not know conditional requests (If-None-Match): write a file, and copy it",
            ));
        }
        let (store, prefix, beats) = (Arc::clone(store), prefix.clone(), AtomicU64::new(0));
        let lease = Self { store, prefix, epoch, is_own_again, beats };
        lease.beat()?;
        Ok(lease)
    }

    /// Its number: later ones are higher.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether a run before this one had it and was not completed: one that is removes its locks.
    pub fn follows_another(&self) -> bool {
        self.epoch > 1
    }

    /// Makes sure that it is this run's still.
    ///
    /// # Errors
    /// Another run has taken it, or the store cannot be asked.
    pub fn check(&self) -> Result<(), StoreError> {
        match newest(&self.store, &self.prefix)? {
            Some(epoch) if epoch == self.epoch => Ok(()),
            _ => Err(taken(&self.prefix)),
        }
    }

    /// Gives a sign of life.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub fn beat(&self) -> Result<(), StoreError> {
        let beat = self.beats.fetch_add(1, Ordering::Relaxed).to_string();
        let name = alive(&self.prefix, self.epoch);
        self.store.put(&name, beat.as_bytes(), Place::Any).map(drop)
    }

    /// Gives it up: the next run need not wait.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.store.put(&alive(&self.prefix, self.epoch), LEFT, Place::Any).map(drop)
    }
}

fn lock(prefix: &ObjectName, epoch: u32) -> ObjectName {
    prefix.with_suffix(&format!("lock-{epoch:08}"))
}

fn alive(prefix: &ObjectName, epoch: u32) -> ObjectName {
    prefix.with_suffix(&format!("alive-{epoch:08}"))
}

/// Whether an object is a lock or a sign of life, by what follows the prefix.
pub fn is_own(rest: &str) -> bool {
    let number = rest.strip_prefix("lock-").or_else(|| rest.strip_prefix("alive-"));
    number.is_some_and(|number| number.len() == 8 && number.bytes().all(|c| c.is_ascii_digit()))
}

/// The number of the newest lock.
fn newest(store: &Store, prefix: &ObjectName) -> Result<Option<u32>, StoreError> {
    let begun = prefix.with_suffix("lock-");
    let listed = store.list(&begun)?;
    Ok(listed.iter().filter_map(|lock| lock.key.strip_prefix(&begun.key)?.parse().ok()).max())
}

/// Whether the run that has a lock gives a sign of life, or may.
fn is_alive(
    store: &Store,
    prefix: &ObjectName,
    epoch: u32,
    claimant: &Claimant,
) -> Result<bool, StoreError> {
    let sign = || store.get(&alive(prefix, epoch));
    let first = sign()?;
    let (patience, look) = claimant.watch;
    if let Some(console) = claimant.console.as_ref().filter(|_| first.as_deref() != Some(LEFT)) {
        console.note(&format!(
            "Another run has {}: looking for up to {} s whether it still works (--take-over goes on \
             at once)",
            output(prefix),
            patience.as_secs()
        ));
    }
    let began = Instant::now();
    while first.as_deref() != Some(LEFT) && began.elapsed() < patience {
        std::thread::sleep(look);
        if sign()? != first {
            return Ok(true);
        }
    }
    Ok(false)
}

fn taken(prefix: &ObjectName) -> StoreError {
    let message = format!("another run has {}", output(prefix));
    StoreError::new(ErrorKind::Exists, message).help(
        "wait until it ends, or choose another --out; if it is dead, --take-over goes on in its \
         place",
    )
}

/// The object whose journal is under a prefix.
fn output(prefix: &ObjectName) -> String {
    prefix.to_string().trim_end_matches(".journal/").to_owned()
}
