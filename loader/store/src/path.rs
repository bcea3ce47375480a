//! Paths inside a store.

use std::fmt;

/// An absolute path inside one store: `/`-separated, no scheme, no empty, `.` or `..` segments.
///
/// Nothing is decoded or escaped: `%` and `=` are ordinary characters, as in Hadoop's shell. Ordered
/// by bytes, which for siblings is the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePath(String);

/// Why a text is not a [`StorePath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStorePath {
    /// The text does not begin with `/`.
    #[error("path {path:?} is not absolute: it must begin with /")]
    NotAbsolute {
        /// The text.
        path: String,
    },
    /// A segment is empty, `.`, `..` or holds a NUL byte.
    #[error("path {path:?} has the segment {segment:?}: it must not be empty, . or .. or hold NUL")]
    Segment {
        /// The text.
        path: String,
        /// The segment that is refused.
        segment: String,
    },
}

fn check_segments(path: &str, segments: &str) -> Result<(), InvalidStorePath> {
    for segment in segments.split('/') {
        if matches!(segment, "" | "." | "..") || segment.contains('\0') {
            let (path, segment) = (path.to_owned(), segment.to_owned());
            return Err(InvalidStorePath::Segment { path, segment });
        }
    }
    Ok(())
}

impl StorePath {
    /// The store's root, `/`.
    #[must_use]
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// Checks and takes an absolute path. Strict: a trailing or double `/` is refused, not repaired.
    ///
    /// # Errors
    /// [`InvalidStorePath`] says which segment is wrong.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidStorePath> {
        let path = path.into();
        match path.strip_prefix('/') {
            None => Err(InvalidStorePath::NotAbsolute { path }),
            Some("") => Ok(Self(path)),
            Some(segments) => {
                check_segments(&path, segments)?;
                Ok(Self(path))
            }
        }
    }

    /// The path of a child: `relative` is one segment or several separated by `/`.
    ///
    /// # Errors
    /// [`InvalidStorePath`] if a segment is empty, `.`, `..` or holds NUL; so data that names a
    /// directory can never lead out of it.
    pub fn try_join(&self, relative: &str) -> Result<Self, InvalidStorePath> {
        check_segments(relative, relative)?;
        Ok(self.push(relative))
    }

    /// [`StorePath::try_join`] for names known to be sound: literals, numbers, uuids, names that came
    /// from a listing.
    ///
    /// # Panics
    /// If a segment is empty, `.`, `..` or holds NUL. Use [`StorePath::try_join`] for names from data.
    #[must_use]
    pub fn join(&self, relative: &str) -> Self {
        assert!(
            check_segments(relative, relative).is_ok(),
            "join with a literal or listed name only, not {relative:?}"
        );
        self.push(relative)
    }

    fn push(&self, relative: &str) -> Self {
        let parent = self.0.strip_suffix('/').unwrap_or(&self.0);
        Self(format!("{parent}/{relative}"))
    }

    /// The directory this path is in; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/') {
            None | Some((_, "")) => None,
            Some(("", _)) => Some(Self::root()),
            Some((parent, _)) => Some(Self(parent.to_owned())),
        }
    }

    /// The last segment; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The whole path, beginning with `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `ancestor` or lies below it, by whole segments.
    #[must_use]
    pub fn starts_with(&self, ancestor: &Self) -> bool {
        self.relative_to(ancestor).is_some()
    }

    /// What follows `ancestor`, without a leading `/` (empty for `ancestor` itself); `None` if this
    /// does not lie below it.
    #[must_use]
    pub fn relative_to(&self, ancestor: &Self) -> Option<&str> {
        let parent = ancestor.0.strip_suffix('/').unwrap_or(&ancestor.0);
        match self.0.strip_prefix(parent)? {
            "" => Some(""),
            rest => rest.strip_prefix('/'),
        }
    }
}

impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<std::path::Path> for StorePath {
    fn as_ref(&self) -> &std::path::Path {
        std::path::Path::new(&self.0)
    }
}

impl TryFrom<String> for StorePath {
    type Error = InvalidStorePath;
    fn try_from(path: String) -> Result<Self, InvalidStorePath> {
        Self::new(path)
    }
}

impl From<StorePath> for String {
    fn from(path: StorePath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> StorePath {
        StorePath::new(text).unwrap()
    }

    #[test]
    fn takes_absolute_paths_and_refuses_dots_and_empty_segments() {
        for good in [
            "/",
            "/a",
            "/a/b c/dt=2026-11-30",
            "/ä/%3A",
            "/.hidden/...",
            "/-/~",
        ] {
            assert_eq!(path(good).as_str(), good);
        }
        for bad in [
            "", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/a\0b",
        ] {
            assert!(StorePath::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn join_parent_and_name_agree() {
        let file = path("/a").join("b/c");
        assert_eq!(file, path("/a/b/c"));
        assert_eq!(file.name(), "c");
        assert_eq!(file.parent(), Some(path("/a/b")));
        assert_eq!(path("/a").parent(), Some(StorePath::root()));
        assert_eq!(StorePath::root().parent(), None);
        assert_eq!(StorePath::root().name(), "");
        assert_eq!(StorePath::root().join("x"), path("/x"));
        for bad in ["", ".", "..", "a/../b", "/a", "a/", "a//b", "\0"] {
            assert!(file.try_join(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn relative_to_counts_whole_segments() {
        assert_eq!(path("/a/b/c").relative_to(&path("/a")), Some("b/c"));
        assert_eq!(path("/a").relative_to(&path("/a")), Some(""));
        assert_eq!(path("/ab").relative_to(&path("/a")), None);
        assert_eq!(path("/a").relative_to(&StorePath::root()), Some("a"));
        assert!(path("/a/b").starts_with(&path("/a/b")));
        assert!(!path("/a").starts_with(&path("/a/b")));
    }
}
