//! Plans and executables on disk.
//!
//! Blobs are native code, so the folder must belong to this user and be closed to others. Entries are written to a
//! temporary file and renamed, carry a checksum, and live under a folder named by everything that could make them
//! wrong: versions, plugin build, CPU features. A bad entry is ignored and replaced.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub type Hash = [u8; 32];

const MAGIC: &[u8; 8] = b"tpjrt\x00\x00\x01";

#[derive(Debug)]
pub struct DiskCache {
    root: PathBuf,
    /// Entries of this environment.
    folder: PathBuf,
}

/// What a listing of the cache folder says.
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub path: PathBuf,
    pub entries: u64,
    pub bytes: u64,
    /// Why the folder is not used.
    pub refused: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Plan,
    Executable,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Kind::Plan => "plan",
            Kind::Executable => "exe",
        }
    }
}

impl DiskCache {
    /// `environment` names everything that entries depend on beyond their own key. The folder is made when the first
    /// entry is written.
    pub fn new(root: &Path, environment: &[u8]) -> DiskCache {
        let name = blake3::hash(environment).to_hex();
        DiskCache { root: root.to_owned(), folder: root.join(&name.as_str()[..16]) }
    }

    fn path(&self, kind: Kind, key: &Hash) -> PathBuf {
        let name = blake3::Hash::from_bytes(*key).to_hex();
        self.folder.join(&name.as_str()[..2]).join(format!("{}.{}", &name.as_str()[2..40], kind.extension()))
    }

    /// The entry, if it is there, ours, and whole.
    pub fn read(&self, kind: Kind, key: &Hash) -> Option<Vec<u8>> {
        if refusal(&self.root).is_some() {
            return None;
        }
        let path = self.path(kind, key);
        let metadata = fs::symlink_metadata(&path).ok()?;
        if !metadata.is_file() || metadata.uid() != rustix::process::getuid().as_raw() {
            return None;
        }
        let bytes = fs::read(&path).ok()?;
        let body = bytes.strip_prefix(MAGIC)?;
        let (checksum, body) = body.split_at_checked(32)?;
        (blake3::hash(body).as_bytes() == checksum).then(|| body.to_vec())
    }

    /// Atomic: readers see the old entry, the new one, or none. A cache that cannot be written is no error.
    pub fn write(&self, kind: Kind, key: &Hash, body: &[u8]) {
        let _ = self.try_write(kind, key, body);
    }

    fn try_write(&self, kind: Kind, key: &Hash, body: &[u8]) -> io::Result<()> {
        if let Some(reason) = refusal(&self.root) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let path = self.path(kind, key);
        let folder = path.parent().unwrap_or(&self.folder);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(blake3::hash(body).as_bytes())?;
        file.write_all(body)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Why a cache folder must not be used; `None` when it may be, or does not exist yet.
pub fn refusal(root: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(root).ok()?;
    if !metadata.is_dir() {
        return Some(format!("{} is not a directory", root.display()));
    }
    let owner = metadata.uid();
    let user = rustix::process::getuid().as_raw();
    if owner != user {
        return Some(format!("{} belongs to user {owner}, not to {user}", root.display()));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Some(format!("{} can be written by others (mode {mode:o}); chmod 700 it", root.display()));
    }
    None
}

/// Reads the folder only.
pub fn info(root: &Path) -> Info {
    let mut info = Info { path: root.to_owned(), refused: refusal(root), ..Info::default() };
    visit_entries(root, &mut |_, metadata| {
        info.entries += 1;
        info.bytes += metadata.len();
    });
    info
}

/// Removes every entry and says how many there were.
pub fn clear(root: &Path) -> io::Result<u64> {
    if let Some(reason) = refusal(root) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let mut removed = 0;
    let mut failed = None;
    visit_entries(root, &mut |path, _| match fs::remove_file(path) {
        Ok(()) => removed += 1,
        Err(error) => failed = Some(error),
    });
    failed.map_or(Ok(removed), Err)
}

fn visit_entries(root: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    let Ok(children) = fs::read_dir(root) else { return };
    for child in children.flatten() {
        let path = child.path();
        match child.metadata() {
            Ok(metadata) if metadata.is_dir() => visit_entries(&path, visit),
            Ok(metadata) if path.extension().is_some_and(|e| e == "plan" || e == "exe") => {
                visit(&path, &metadata)
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, DiskCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::new(folder.path(), b"test");
        (folder, cache)
    }

    #[test]
    fn round_trip_and_replacement() {
        let (_folder, cache) = cache();
        let key = [7; 32];
        assert_eq!(cache.read(Kind::Plan, &key), None);
        cache.write(Kind::Plan, &key, b"one");
        cache.write(Kind::Executable, &key, b"code");
        cache.write(Kind::Plan, &key, b"two");
        assert_eq!(cache.read(Kind::Plan, &key).as_deref(), Some(&b"two"[..]));
        assert_eq!(cache.read(Kind::Executable, &key).as_deref(), Some(&b"code"[..]));
        assert_eq!(info(&cache.root).entries, 2);
        assert_eq!(clear(&cache.root).unwrap(), 2);
        assert_eq!(cache.read(Kind::Plan, &key), None);
    }

    #[test]
    fn damaged_entries_are_ignored_and_replaced() {
        let (_folder, cache) = cache();
        let key = [9; 32];
        cache.write(Kind::Plan, &key, b"a long enough body");
        let path = cache.path(Kind::Plan, &key);
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], &[]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.read(Kind::Plan, &key), None);
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert_eq!(cache.read(Kind::Plan, &key), None);
        cache.write(Kind::Plan, &key, b"again");
        assert_eq!(cache.read(Kind::Plan, &key).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn folders_open_to_others_are_refused() {
        let (folder, cache) = cache();
        cache.write(Kind::Plan, &[1; 32], b"x");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(cache.read(Kind::Plan, &[1; 32]), None);
        assert!(refusal(folder.path()).unwrap().contains("written by others"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(cache.read(Kind::Plan, &[1; 32]).is_some());
    }

    #[test]
    fn environments_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        DiskCache::new(folder.path(), b"one").write(Kind::Plan, &[1; 32], b"x");
        assert_eq!(DiskCache::new(folder.path(), b"two").read(Kind::Plan, &[1; 32]), None);
    }
}
