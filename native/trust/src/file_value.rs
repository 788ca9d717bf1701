//! A value made from files. When they change it is made again, so renewed certificates and tokens need no
//! restart. Files that cannot be used leave the value as it is.

use std::fmt;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);
/// How long the former value stays known: files of several machines do not change at one time.
const FORMER_KEPT: Duration = Duration::from_secs(300);

/// Hears of files that were read again, and why they could not be used.
pub type OnRenewal = fn(files: &str, error: Option<&str>);

static ON_RENEWAL: OnceLock<OnRenewal> = OnceLock::new();

/// Sets who hears of files that were read again; only the first call has an effect.
pub fn on_renewal(hear: OnRenewal) {
    let _ = ON_RENEWAL.set(hear);
}

/// Metadata that differs once a file has changed, or a link on the way to it.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let found = metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}

struct State<T> {
    value: Arc<T>,
    former: Option<(Arc<T>, Instant)>,
    stamps: Vec<Stamp>,
    error: Option<String>,
    looked_at: Instant,
}

type Make<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value made from files.
pub struct FileValue<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    look: Duration,
    former_kept: Duration,
    state: Mutex<State<T>>,
}

impl<T> fmt::Debug for FileValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileValue({:?})", self.files)
    }
}

impl<T> FileValue<T> {
    /// Makes the value from the files.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        Self::within(files, Box::new(make), LOOK, FORMER_KEPT)
    }

    fn within(
        files: Vec<PathBuf>,
        make: Make<T>,
        look: Duration,
        former_kept: Duration,
    ) -> Result<Self, String> {
        // The stamps come first: a change after them is seen later.
        let stamps = files.iter().map(|path| stamp(path)).collect();
        let value = Arc::new(make()?);
        let state = State { value, former: None, stamps, error: None, looked_at: Instant::now() };
        Ok(Self { files, make, look, former_kept, state: Mutex::new(state) })
    }

    /// Returns the value, of files as they were a second ago at most.
    pub fn now(&self) -> Arc<T> {
        self.with_former().0
    }

    /// Returns the value, and the one before it for five minutes after a change.
    pub fn with_former(&self) -> (Arc<T>, Option<Arc<T>>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = if !self.files.is_empty() && state.looked_at.elapsed() >= self.look {
            self.renew(&mut state)
        } else {
            None
        };
        state.former.take_if(|(_, since)| since.elapsed() >= self.former_kept);
        let former = state.former.as_ref().map(|(value, _)| value.clone());
        let found = (state.value.clone(), former);
        drop(state);
        // Called without our lock: the listener may be slow, or wait for a lock that a caller of this holds.
        if let (Some(error), Some(hear)) = (outcome, ON_RENEWAL.get()) {
            let names: Vec<String> = self.files.iter().map(|path| path.display().to_string()).collect();
            hear(&names.join(" and "), error.as_deref());
        }
        found
    }

    /// Makes the value again if the files have changed. Returns `None` if nothing is new, `Some(None)` for a new
    /// value, and otherwise a new error.
    fn renew(&self, state: &mut State<T>) -> Option<Option<String>> {
        state.looked_at = Instant::now();
        let stamps: Vec<Stamp> = self.files.iter().map(|path| stamp(path)).collect();
        if stamps == state.stamps {
            return None;
        }
        match (self.make)() {
            Ok(value) => {
                let former = std::mem::replace(&mut state.value, Arc::new(value));
                state.former = Some((former, Instant::now()));
                (state.stamps, state.error) = (stamps, None);
                Some(None)
            }
            // The stamps stay: files that are being written are tried again.
            Err(error) if state.error.as_ref() == Some(&error) => None,
            Err(error) => {
                state.error = Some(error.clone());
                Some(Some(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{read_to_string, rename, write};

    fn text_of(path: &Path, former_kept: Duration) -> FileValue<String> {
        let file = path.to_owned();
        let make = move || match read_to_string(&file) {
            Ok(text) if text.ends_with('\n') => Ok(text.trim().to_owned()),
            Ok(text) => Err(format!("{} bytes without an end", text.len())),
            Err(error) => Err(error.to_string()),
        };
        FileValue::within(vec![path.to_owned()], Box::new(make), Duration::ZERO, former_kept).unwrap()
    }

    #[test]
    fn a_value_follows_its_file_and_survives_one_that_cannot_be_used() {
        let folder = std::env::temp_dir().join(format!("renewed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("value");
        write(&path, "first\n").unwrap();
        let value = text_of(&path, Duration::from_secs(60));
        assert_eq!((value.now().as_str(), value.with_former().1), ("first", None));
        write(&path, "seco").unwrap();
        assert_eq!((value.now().as_str(), value.with_former().1), ("first", None));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(*value.now(), "first");
        write(folder.join("other"), "other\n").unwrap();
        rename(folder.join("other"), &path).unwrap();
        assert_eq!((value.now().as_str(), value.with_former().1.unwrap().as_str()), ("other", "first"));
        let forgets = text_of(&path, Duration::ZERO);
        write(&path, "third\n").unwrap();
        assert_eq!((forgets.now().as_str(), forgets.with_former().1), ("third", None));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_are_looked_at_once_a_second() {
        let path = std::env::temp_dir().join(format!("renewed-rarely-{}", std::process::id()));
        write(&path, "first\n").unwrap();
        let value = FileValue { look: Duration::from_secs(60), ..text_of(&path, FORMER_KEPT) };
        write(&path, "second\n").unwrap();
        assert_eq!(*value.now(), "first");
        std::fs::remove_file(path).unwrap();
    }
}
