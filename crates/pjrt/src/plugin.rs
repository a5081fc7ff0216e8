//! Loading a plugin and calling its methods.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::error::{Code, Error, Result};
use crate::options::{OptionValue, read_named_values, read_string};
use crate::sys::*;

/// The oldest API whose structs and methods this crate can rely on.
pub const MINIMUM_VERSION: (i32, i32) = (0, 81);

/// A loaded plugin. It is never unloaded: its threads and static state do not survive `dlclose`.
pub struct Plugin {
    api: *const PJRT_Api,
    /// Of the plugin's table, in bytes: where its methods end.
    api_size: usize,
    version: (i32, i32),
    path: PathBuf,
}

// SAFETY: the table is immutable, lives as long as the process, and the PJRT API is thread safe.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// Plugins by canonical path: `PJRT_Plugin_Initialize` must run once per library.
static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<Plugin>>>> = LazyLock::new(Default::default);

impl Plugin {
    /// Loads and initialises a plugin; a second load of the same file returns the first one.
    pub fn load(path: &Path) -> Result<Arc<Plugin>> {
        let path = path.canonicalize().map_err(|_| Error::PluginMissing { path: path.to_owned() })?;
        let mut loaded = LOADED.lock();
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin.clone());
        }
        let plugin = Arc::new(Self::open(&path)?);
        loaded.insert(path, plugin.clone());
        Ok(plugin)
    }

    fn open(path: &Path) -> Result<Plugin> {
        let not_a_plugin =
            |reason: &str| Error::NotAPlugin { path: path.to_owned(), reason: reason.to_owned() };
        if path.is_dir() {
            return Err(not_a_plugin("it is a directory"));
        }
        // Bound at once: a symbol that is missing when it is first called would end the process.
        let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_LOCAL;
        // SAFETY: running a plugin's initialisers is what loading a plugin means.
        let library = unsafe { libloading::os::unix::Library::open(Some(path), flags) }
            .map_err(|error| Error::PluginLoad { path: path.to_owned(), message: with_source(&error) })?;
        // SAFETY: the symbol, if present, has this type in every PJRT plugin.
        let get_api = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") }
            .map(|symbol| *symbol)
            .map_err(|_| not_a_plugin("it does not export GetPjrtApi"))?;
        std::mem::forget(library);
        // SAFETY: GetPjrtApi takes no arguments and returns a static table.
        let api = unsafe { get_api() };
        if api.is_null() {
            return Err(not_a_plugin("GetPjrtApi returned null"));
        }
        // SAFETY: every version of the table starts with these three fields.
        let (api_size, version) = unsafe {
            let version = &(*api).pjrt_api_version;
            ((*api).struct_size, (version.major_version, version.minor_version))
        };
        let required = MINIMUM_VERSION;
        if version.0 != required.0 || version.1 < required.1 {
            return Err(Error::PluginVersion { path: path.to_owned(), found: version, required });
        }
        let plugin = Plugin { api, api_size, version, path: path.to_owned() };
        // SAFETY: no pointers in the arguments.
        unsafe { plugin.call(&mut PJRT_Plugin_Initialize_Args::new()) }.map_err(|error| match error {
            Error::Api { code, message, .. } => Error::PluginInit { path: path.to_owned(), code, message },
            other => other,
        })?;
        Ok(plugin)
    }

    /// Major and minor version of the plugin's API.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the plugin says of itself, such as `xla_version` and `stablehlo_current_version`.
    pub fn attributes(&self) -> Result<Vec<(String, OptionValue)>> {
        let mut args = PJRT_Plugin_Attributes_Args::new();
        // SAFETY: outputs only; the list lives as long as the process.
        unsafe {
            self.call(&mut args)?;
            Ok(read_named_values(args.attributes, args.num_attributes))
        }
    }

    #[inline]
    fn method<A: Method>(&self) -> Option<MethodFn<A>> {
        if A::OFFSET + size_of::<MethodFn<A>>() > self.api_size {
            return None;
        }
        // SAFETY: the slot lies within the plugin's table and holds a nullable pointer of this type (`Method`).
        unsafe { self.api.byte_add(A::OFFSET).cast::<Option<MethodFn<A>>>().read() }
    }

    /// # Safety
    /// The pointers in `args` must be what the method documents.
    #[inline]
    pub(crate) unsafe fn call<A: Method>(&self, args: &mut A) -> Result<()> {
        let Some(method) = self.method::<A>() else {
            return Err(Error::Unsupported { method: A::NAME, version: self.version });
        };
        // SAFETY: `args` is the method's own struct with struct_size set; the caller vouches for its pointers.
        let error = unsafe { method(args) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the plugin passes us the ownership of the error.
        Err(unsafe { self.take_error(A::NAME, error) })
    }

    /// Reads and frees an error.
    ///
    /// # Safety
    /// `error` must be an error of this plugin that nobody else frees.
    #[cold]
    pub(crate) unsafe fn take_error(&self, method: &'static str, error: *mut PJRT_Error) -> Error {
        let mut message = String::new();
        let mut code = PJRT_Error_GetCode_Args { error, ..PJRT_Error_GetCode_Args::new() };
        // SAFETY: the error slots open the table of every version; `error` is live until Error_Destroy, and the
        // message lives as long as it.
        unsafe {
            if let Some(get_message) = (*self.api).Error_Message {
                let mut args = PJRT_Error_Message_Args { error, ..PJRT_Error_Message_Args::new() };
                get_message(&mut args);
                message = read_string(args.message, args.message_size);
            }
            if let Some(get_code) = self.method::<PJRT_Error_GetCode_Args>() {
                get_code(&mut code);
            }
            if let Some(destroy) = (*self.api).Error_Destroy {
                destroy(&mut PJRT_Error_Destroy_Args { error, ..PJRT_Error_Destroy_Args::new() });
            }
        }
        Error::Api { method, code: Code::from_raw(code.code), message }
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plugin({}, API {}.{})", self.path.display(), self.version.0, self.version.1)
    }
}

/// libloading keeps the loader's text in the source of its error.
fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
