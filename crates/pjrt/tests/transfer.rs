//! Buffers, element types, transfers, events.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pjrt::{ElementType, Error, Event, HostRegion, HostSource};
use support::*;

/// Sends a message when it is dropped.
struct Owner(mpsc::Sender<()>, #[allow(dead_code)] Vec<u8>);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn region(bytes: Vec<u8>) -> (HostRegion, mpsc::Receiver<()>) {
    let (sender, receiver) = mpsc::channel();
    let (ptr, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the owner holds the vector.
    (unsafe { HostRegion::new(ptr, len, Box::new(Owner(sender, bytes))) }, receiver)
}

#[test]
fn every_element_type_survives_the_round_trip() {
    use ElementType::*;
    let types =
        [Pred, S8, S16, S32, S64, U8, U16, U32, U64, F16, F32, F64, BF16, C64, C128, F8E5M2, F8E4M3FN];
    for element_type in types {
        for dims in [&[2i64, 3][..], &[], &[0, 5], &[1]] {
            let len = element_type.dense_bytes(dims).unwrap();
            let bytes: Vec<u8> = match element_type {
                Pred => (0..len).map(|i| (i % 2) as u8).collect(),
                _ => (0..len).map(|i| i as u8).collect(),
            };
            let device = &client().devices()[0];
            let buffer =
                client().buffer_from_host(HostSource::Copy(&bytes), element_type, dims, device).unwrap();
            assert_eq!((buffer.element_type(), buffer.dims()), (element_type, dims));
            let (mut read, mut scalar) = (vec![9; len], vec![9; len]);
            buffer.read_into(&mut read).unwrap();
            buffer.read_scalar(&mut scalar).unwrap();
            assert_eq!(read, bytes, "{element_type:?} {dims:?}");
            assert_eq!(scalar, bytes, "{element_type:?} {dims:?}");
            assert!(buffer.size_bytes().unwrap() >= len);
        }
    }
}

#[test]
fn bf16_bool_and_complex_compute() {
    let cases = [
        ("bf16", "add", ElementType::BF16, &[0x80, 0x3f][..], &[0x00, 0x40][..]),
        ("i1", "or", ElementType::Pred, &[1], &[1]),
        (
            "complex<f32>",
            "multiply",
            ElementType::C64,
            &[0, 0, 0, 0, 0, 0, 0x80, 0x3f],
            &[0, 0, 0x80, 0xbf, 0, 0, 0, 0],
        ),
    ];
    for (name, op, element_type, input, expected) in cases {
        let executable = compile(&module(
            &format!("(%a: tensor<{name}>) -> tensor<{name}>"),
            &format!("%0 = stablehlo.{op} %a, %a : tensor<{name}>\nreturn %0 : tensor<{name}>"),
        ));
        assert_eq!(executable.output_types()[0].0, element_type);
        let device = &client().devices()[0];
        let a = client().buffer_from_host(HostSource::Copy(input), element_type, &[], device).unwrap();
        let mut read = vec![0; expected.len()];
        run(&executable, &[&a]).unwrap()[0].read_scalar(&mut read).unwrap();
        // -1 + 0i, and the sign of that zero is free.
        read.iter_mut().zip(expected).skip(7).for_each(|(byte, expected)| *byte &= expected | 0x7f);
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let device = &client().devices()[0];
    let upload = |bytes: &[u8], dims: &[i64]| {
        client().buffer_from_host(HostSource::Copy(bytes), ElementType::F32, dims, device).unwrap_err()
    };
    assert!(matches!(upload(&[0; 15], &[4]), Error::HostSize { expected: 16, actual: 15, .. }));
    assert!(matches!(upload(&[], &[-1]), Error::Dimensions { .. }));
    assert!(matches!(upload(&[], &[i64::MAX, i64::MAX]), Error::Dimensions { .. }));
    let buffer = support::upload(&[1.; 4], &[4]);
    assert!(matches!(buffer.read_into(&mut [0; 15]), Err(Error::HostSize { .. })));
    assert!(matches!(buffer.read_scalar(&mut [0; 17]), Err(Error::HostSize { .. })));
    assert_eq!(
        buffer.read_into(&mut [0; 15]).unwrap_err().to_string(),
        "the destination holds 15 bytes, a buffer of F32[4] needs 16"
    );
}

#[test]
fn a_copied_source_may_change_at_once() {
    let device = &client().devices()[0];
    let mut bytes = vec![1u8; 1 << 20];
    let dims = [1 << 20];
    let buffer = client().buffer_from_host(HostSource::Copy(&bytes), ElementType::U8, &dims, device).unwrap();
    bytes.fill(2);
    let mut read = vec![0; 1 << 20];
    buffer.read_into(&mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == 1));
}

#[test]
fn the_owner_of_a_borrowed_source_is_dropped_while_the_buffer_lives() {
    let device = &client().devices()[0];
    for n in [0usize, 4, 1 << 20] {
        let (region, dropped) = region(vec![7; n]);
        let dims = [n as i64];
        let buffer =
            client().buffer_from_host(HostSource::Borrowed(region), ElementType::U8, &dims, device).unwrap();
        dropped.recv_timeout(Duration::from_secs(10)).unwrap();
        let mut read = vec![0; n];
        buffer.read_into(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn the_owner_of_an_aliased_source_outlives_the_buffer() {
    let device = &client().devices()[0];
    let bytes = vec![7u8; (1 << 20) + 64];
    let skip = bytes.as_ptr().align_offset(64);
    let (sender, dropped) = mpsc::channel();
    let start = bytes[skip..].as_ptr();
    // SAFETY: the owner holds the vector.
    let region = unsafe { HostRegion::new(start, 1 << 20, Box::new(Owner(sender, bytes))) };
    let buffer =
        client().buffer_from_host(HostSource::Aliased(region), ElementType::U8, &[1 << 20], device).unwrap();
    buffer.ready().await_ready().unwrap();
    if buffer.unsafe_pointer().unwrap() == start as usize {
        assert!(dropped.recv_timeout(Duration::from_millis(50)).is_err());
    }
    drop(buffer);
    dropped.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn the_owner_of_a_refused_source_is_dropped() {
    let (region, dropped) = region(vec![7; 3]);
    let device = &client().devices()[0];
    assert!(client().buffer_from_host(HostSource::Borrowed(region), ElementType::U8, &[4], device).is_err());
    dropped.try_recv().unwrap();
}

#[test]
fn asynchronous_reads_hold_their_destination() {
    let buffer = upload(&[3.; 1024], &[1024]);
    let mut bytes = vec![0u8; 4096];
    let (sender, dropped) = mpsc::channel();
    let (ptr, len) = (bytes.as_mut_ptr(), bytes.len());
    let kept = Arc::new(bytes);
    struct Kept(#[allow(dead_code)] Arc<Vec<u8>>, #[allow(dead_code)] Owner);
    let owner = Kept(kept.clone(), Owner(sender, Vec::new()));
    // SAFETY: the vector is kept, and read only after the copy.
    let event = unsafe { buffer.read_async(ptr, len, Box::new(owner)) }.unwrap();
    // Dropping the buffer does not disturb the read.
    drop(buffer);
    event.await_ready().unwrap();
    dropped.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(kept.chunks(4).all(|chunk| chunk == 3f32.to_ne_bytes()));
}

#[test]
fn copies_between_devices() {
    let devices = client().devices();
    let a = upload(&[1., 2.], &[2]);
    let b = a.copy_to_device(&devices[2]).unwrap();
    assert!(b.is_on(&devices[2]) && a.is_on(&devices[0]));
    drop(a);
    assert_eq!(download(&b), [1., 2.]);
}

#[test]
fn events_call_back_once() {
    let calls = mpsc::channel();
    let buffer = upload(&[1.; 4], &[4]);
    let event = buffer.ready();
    for _ in 0..2 {
        let sender = calls.0.clone();
        event.on_ready(move |result| sender.send(result).unwrap());
    }
    for _ in 0..2 {
        calls.1.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    }
    event.await_ready().unwrap();
    assert!(event.is_ready() && event.error().is_none());
    // A panic must not unwind into the plugin.
    event.on_ready(|_| panic!("expected: a callback of this test panics"));
}

#[test]
fn failed_events_keep_their_error() {
    let buffer = upload(&[1.; 4], &[4]);
    buffer.delete().unwrap();
    for event in [buffer.ready(), Event::done(Err(buffer.read_into(&mut [0; 16]).unwrap_err()))] {
        assert!(event.await_ready().is_err() && event.await_ready().is_err());
        assert!(event.is_ready() && event.error().is_some());
        let failed = Arc::new(AtomicBool::new(false));
        let seen = failed.clone();
        event.on_ready(move |result| seen.store(result.is_err(), Ordering::SeqCst));
        assert!(failed.load(Ordering::SeqCst));
    }
}

#[test]
fn a_scalar_read_waits_for_the_computation() {
    let text = module(
        "(%a: tensor<512x512xf32>) -> tensor<f32>",
        "%0 = stablehlo.dot %a, %a : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
         %1 = stablehlo.dot %0, %a : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
         %2 = stablehlo.slice %1 [0:1, 0:1] : (tensor<512x512xf32>) -> tensor<1x1xf32>
         %3 = stablehlo.reshape %2 : (tensor<1x1xf32>) -> tensor<f32>
         return %3 : tensor<f32>",
    );
    let executable = compile(&text);
    let a = upload(&vec![1.; 512 * 512], &[512, 512]);
    let mut bytes = [0; 4];
    run(&executable, &[&a]).unwrap()[0].read_scalar(&mut bytes).unwrap();
    assert_eq!(f32::from_ne_bytes(bytes), 512. * 512.);
}
