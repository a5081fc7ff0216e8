//! Loading what is a plugin and what is not.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;

use pjrt::{Client, ElementType, Error, HostSource, OptionValue, Plugin};

#[test]
fn a_plugin_is_loaded_once() {
    let (first, second) = (support::plugin(), support::plugin());
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first.path(), support::plugin_path().canonicalize().unwrap());
}

#[test]
fn a_missing_file() {
    let error = Plugin::load(Path::new("/nowhere/plugin.so")).unwrap_err();
    assert!(matches!(error, Error::PluginMissing { .. }));
    assert_eq!(error.to_string(), "PJRT plugin /nowhere/plugin.so does not exist");
}

#[test]
fn a_directory_or_text_file() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Plugin::load(directory.path()), Err(Error::NotAPlugin { .. })));
    let file = directory.path().join("plugin.so");
    std::fs::write(&file, "not a library").unwrap();
    let error = Plugin::load(&file).unwrap_err();
    assert!(
        matches!(&error, Error::PluginLoad { message, .. } if message.contains("ELF") || message.contains("short")),
        "{error}"
    );
}

#[test]
fn a_library_that_is_no_plugin() {
    let libm = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists())
        .expect("a C library");
    let error = Plugin::load(libm).unwrap_err();
    assert!(error.to_string().ends_with("is not a PJRT plugin: it does not export GetPjrtApi"), "{error}");
}

#[test]
fn clients_come_and_go() {
    for count in [1, 3] {
        let client =
            Client::create(&support::plugin(), &[("cpu_device_count", OptionValue::Int(count))]).unwrap();
        assert_eq!(client.devices().len(), count as usize);
        let device = client.devices()[0].clone();
        drop(client);
        assert!(!device.debug_string().is_empty());
    }
}

#[test]
fn a_wrong_option_is_an_error() {
    for value in [OptionValue::Str("many".into()), OptionValue::Int(0), OptionValue::Int(-1)] {
        let error = Client::create(&support::plugin(), &[("cpu_device_count", value)]).unwrap_err();
        assert_eq!(error.to_string(), "client option cpu_device_count must be a positive integer");
    }
}

/// Destroying a client joins its threads; the callback runs on one of them.
#[test]
fn a_callback_may_hold_the_last_reference_to_the_client() {
    const LEN: usize = 1 << 22;
    struct Owner {
        bytes: Vec<u8>,
        client: Option<Client>,
        done: std::sync::mpsc::Sender<()>,
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            assert!(self.bytes.iter().all(|byte| *byte == 5));
            drop(self.client.take());
            let _ = self.done.send(());
        }
    }
    let (done, dropped) = std::sync::mpsc::channel();
    for _ in 0..10 {
        let client =
            Client::create(&support::plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
        let source = vec![5; LEN];
        let buffer = client
            .buffer_from_host(HostSource::Copy(&source), ElementType::U8, &[LEN as i64], &client.devices()[0])
            .unwrap();
        let mut owner = Box::new(Owner { bytes: vec![0; LEN], client: Some(client), done: done.clone() });
        let destination = owner.bytes.as_mut_ptr();
        // SAFETY: the owner holds the vector.
        drop(unsafe { buffer.read_async(destination, LEN, owner) }.unwrap());
        drop(buffer);
        dropped.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}
