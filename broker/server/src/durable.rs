//! Replacing a small file so that a crash leaves the old one or the new one, whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Writes `content` beside `path`, flushes it, renames it over `path` and flushes the folder.
///
/// Blocks on the disk.
///
/// # Errors
/// The first step that failed; `path` then holds what it held before.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("new");
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&aside, path)) {
        drop(fs::remove_file(&aside));
        return Err(error);
    }
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_holds_the_new_content_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("topics.json");
        replace_file(&path, b"old and longer").unwrap();
        replace_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_replacement_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("topics.json");
        replace_file(&path, b"old").unwrap();
        fs::create_dir(path.with_extension("new")).unwrap();
        replace_file(&path, b"new").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
