//! Locations as people write them, to store and path.

use std::path::{Component, Path, PathBuf};

use crate::local::blocking;
use crate::{Error, Operation, Result, StorePath};

/// A location taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A local path, possibly relative.
    Local {
        /// As given, without the scheme.
        path: PathBuf,
    },
    /// A path on HDFS.
    Hdfs {
        /// `host`, `host:port` or a name service; none means `fs.defaultFS`.
        authority: Option<String>,
        /// The path.
        path: StorePath,
    },
}

fn refuse(location: &str, reason: impl Into<String>) -> Error {
    Error::Location {
        location: location.to_owned(),
        reason: reason.into(),
    }
}

/// Sorts `location` by its scheme. No I/O.
pub(crate) fn parse(location: &str) -> Result<Location> {
    if location.is_empty() || location.contains('\0') {
        return Err(refuse(location, "it is empty or holds a NUL byte"));
    }
    let Some((scheme, rest)) = location.split_once("://") else {
        let path = match location.strip_prefix("file:") {
            Some(path) if path.starts_with('/') => path,
            _ => location,
        };
        return Ok(Location::Local {
            path: PathBuf::from(path),
        });
    };
    let (authority, path) = rest
        .find('/')
        .map_or((rest, ""), |slash| rest.split_at(slash));
    match scheme {
        "file" if matches!(authority, "" | "localhost") && !path.is_empty() => {
            Ok(Location::Local {
                path: PathBuf::from(path),
            })
        }
        "file" => Err(refuse(
            location,
            "a file location has three slashes: file:///path",
        )),
        "hdfs" if authority.contains('@') => Err(refuse(
            location,
            "the user is not part of the location: set HADOOP_USER_NAME",
        )),
        "hdfs" => Ok(Location::Hdfs {
            authority: (!authority.is_empty()).then(|| authority.to_owned()),
            path: clean(location, path)?,
        }),
        _ => Err(refuse(
            location,
            format!("there is no store for the scheme {scheme:?}"),
        )),
    }
}

/// Drops empty and `.` segments; `..` is an error, since nothing here knows what links are.
fn clean(location: &str, path: &str) -> Result<StorePath> {
    let mut cleaned = StorePath::root();
    for segment in path
        .split('/')
        .filter(|segment| !matches!(*segment, "" | "."))
    {
        cleaned = cleaned
            .try_join(segment)
            .map_err(|e| refuse(location, e.to_string()))?;
    }
    Ok(cleaned)
}

/// Makes a local path absolute. `..` goes up from where the path before it really leads.
pub(crate) async fn absolute(location: &str, path: PathBuf) -> Result<StorePath> {
    let location = location.to_owned();
    blocking(Operation::Open, &StorePath::root(), move || {
        let refuse_io = |e: std::io::Error| refuse(&location, e.to_string());
        let absolute =
            resolve(&std::path::absolute(path).map_err(refuse_io)?).map_err(refuse_io)?;
        let text = absolute
            .to_str()
            .ok_or_else(|| refuse(&location, "the path is not UTF-8"))?;
        StorePath::new(text).map_err(|e| refuse(&location, e.to_string()))
    })
    .await
}

fn resolve(absolute: &Path) -> std::io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                resolved = resolved.canonicalize()?;
                resolved.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                resolved.push(component);
            }
        }
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hdfs(authority: Option<&str>, path: &str) -> Location {
        let path = StorePath::new(path).unwrap();
        Location::Hdfs {
            authority: authority.map(str::to_owned),
            path,
        }
    }

    #[test]
    fn sorts_locations_by_scheme() {
        assert_eq!(
            parse("hdfs://nn:8020/a/b").unwrap(),
            hdfs(Some("nn:8020"), "/a/b")
        );
        assert_eq!(
            parse("hdfs://ns//a/./b/").unwrap(),
            hdfs(Some("ns"), "/a/b")
        );
        assert_eq!(parse("hdfs:///a%20b").unwrap(), hdfs(None, "/a%20b"));
        assert_eq!(parse("hdfs://ns").unwrap(), hdfs(Some("ns"), "/"));
        for (text, path) in [
            ("/a/b", "/a/b"),
            ("a/b", "a/b"),
            ("file:///a", "/a"),
            ("file:/a", "/a"),
            ("file://localhost/a", "/a"),
            ("file:a", "file:a"),
        ] {
            assert_eq!(
                parse(text).unwrap(),
                Location::Local { path: path.into() },
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_what_it_cannot_open() {
        for bad in [
            "",
            "a\0b",
            "s3://b/k",
            "hdfs://nn/a/../b",
            "file://host/a",
            "hdfs://u@nn/a",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(
                matches!(error, Error::Location { .. }),
                "{bad:?}: {error:?}"
            );
        }
    }

    #[tokio::test]
    async fn local_paths_become_absolute_and_dots_are_resolved_through_links() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/deep")).unwrap();
        std::os::unix::fs::symlink(root.join("real/deep"), root.join("link")).unwrap();
        let get = async |path: PathBuf| absolute("test", path).await.unwrap().to_string();
        let text = |path: &str| root.join(path).to_str().unwrap().to_owned();
        assert_eq!(get(root.join("./new//x/")).await, text("new/x"));
        assert_eq!(get(root.join("link/../y")).await, text("real/y"));
        assert!(get(PathBuf::from("rel")).await.ends_with("/rel"));
        let missing = absolute("test", root.join("no/../y")).await.unwrap_err();
        assert!(matches!(missing, Error::Location { .. }), "{missing:?}");
    }
}
