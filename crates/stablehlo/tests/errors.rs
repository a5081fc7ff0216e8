//! What the author of a lowering reads when a call is wrong.

#![allow(clippy::unwrap_used, clippy::panic)]

mod samples;

use samples::tensor;
use stablehlo::ElementType::*;
use stablehlo::*;

/// The message of the error that `build` meets. Parameters: 0 f32[2,3], 1 f32[3], 2 s32[], 3 pred[2,3], 4 f32[].
fn refused(build: impl FnOnce(&mut Builder, &[Value]) -> Result<Value>) -> String {
    let mut b = Builder::new("refused");
    let types =
        [tensor(F32, &[2, 3]), tensor(F32, &[3]), tensor(S32, &[]), tensor(Pred, &[2, 3]), tensor(F32, &[])];
    let v: Vec<Value> = types.map(|ty| b.parameter(ty)).to_vec();
    match build(&mut b, &v) {
        Ok(value) => panic!("accepted as {}", b.ty(value)),
        Err(error) => error.to_string(),
    }
}

macro_rules! messages {
    ($(|$b:ident, $v:ident| $call:expr;)+) => {
        #[test]
        fn messages() {
            let mut text = String::new();
            $(
                text.push_str(concat!(stringify!($call), "\n    "));
                text.push_str(&refused(|$b, $v| $call));
                text.push('\n');
            )+
            insta::assert_snapshot!("messages", text);
        }
    };
}

messages! {
    |b, v| b.add(v[0], v[1]);
    |b, v| b.sine(v[2]);
    |b, v| b.and(v[0], v[0]);
    |b, v| b.negate(v[3]);
    |b, v| b.select(v[0], v[0], v[0]);
    |b, v| b.select(v[3], v[1], v[1]);
    |b, v| b.clamp(v[1], v[0], v[1]);
    |b, v| b.complex(v[2], v[2]);
    |b, v| b.bitcast_convert(v[0], F64);
    |b, v| b.bitcast_convert(v[3], U8);
    |b, v| b.reshape(v[0], &[4]);
    |b, v| b.reshape(v[0], &[-2, -3]);
    |b, v| b.transpose(v[0], &[0, 0]);
    |b, v| b.transpose(v[0], &[0, 2]);
    |b, v| b.transpose(v[0], &[0]);
    |b, v| b.broadcast_in_dim(v[0], &[2, 4], &[0, 1]);
    |b, v| b.slice(v[0], &[0, 2], &[2, 4], &[1, 1]);
    |b, v| b.dynamic_slice(v[0], &[v[2], v[4]], &[1, 1]);
    |b, v| b.dynamic_slice(v[0], &[v[2], v[2]], &[1, 4]);
    |b, v| b.dynamic_update_slice(v[0], v[1], &[v[2], v[2]]);
    |b, v| b.pad(v[0], v[2], &[0, 0], &[0, 0], &[0, 0]);
    |b, v| b.pad(v[0], v[4], &[-3, 0], &[0, 0], &[0, 0]);
    |b, v| b.concatenate(&[v[0], v[1]], 0);
    |b, v| b.iota(tensor(F32, &[2]), 1).map(|_| v[0]);
    |b, v| b.constant_i64(U8, 256).map(|_| v[0]);
    |b, v| b.constant_f64(S32, 0.5).map(|_| v[0]);
    |b, v| b.constant_dense(tensor(F32, &[2]), &[0; 4]).map(|_| v[0]);
    |b, v| b.min_value(C64).map(|_| v[0]);
    |b, v| b.reduce_add(v[0], &[2]);
    |b, v| Ok(b.reduce(&[v[0]], &[v[2]], &[0], |_, a| Ok(vec![a[0]]))?[0]);
    |b, v| Ok(b.reduce(&[v[0]], &[v[4]], &[0], |b, a| Ok(vec![b.compare(a[0], a[1], Direction::Lt)?]))?[0]);
    |b, v| Ok(b.reduce(&[v[0]], &[v[4]], &[0], |b, a| Ok(vec![b.add(a[0], v[4])?]))?[0]);
    |b, v| Ok(b.reduce_window(&[v[0]], &[v[4]], &WindowDims { strides: Dims::from_slice(&[0, 1]), ..WindowDims::new(&[1, 1]) }, |_, a| Ok(vec![a[0]]))?[0]);
    |b, v| b.select_and_scatter(v[0], v[0], v[4], &WindowDims::new(&[2, 1]), |b, a| b.compare(a[0], a[1], Direction::Ge), |_, a| Ok(a[0]));
    |b, v| Ok(b.sort(&[v[0], v[1]], 0, true, |b, a| b.compare(a[0], a[1], Direction::Lt))?[0]);
    |b, v| Ok(b.sort(&[v[0]], 0, true, |_, a| Ok(a[0]))?[0]);
    |b, v| Ok(b.while_loop(&[v[2]], |_, a| Ok(a[0]), |_, a| Ok(a.to_vec()))?[0]);
    |b, v| Ok(b.while_loop(&[v[2]], |b, _| b.constant(Pred, true), |_, _| Ok(vec![v[4]]))?[0]);
    |b, v| Ok(b.if_else(v[3], |_| Ok(vec![v[0]]), |_| Ok(vec![v[0]]))?[0]);
    |b, v| b.matmul(v[0], v[0], Precision::Default);
    |b, v| b.dot_general(v[0], v[1], &DotDimensionNumbers::new(&[], &[], &[0], &[0]), Precision::Default, F32);
    |b, v| b.dot_general(v[0], v[1], &DotDimensionNumbers::new(&[], &[], &[1], &[0]), Precision::Default, S32);
    |b, v| b.convolution(v[0], v[0], &ConvDimensionNumbers::nchw(0), &ConvWindow::unit(0), 2, 1, Precision::Default, F32);
    |b, v| b.gather(v[0], v[4], &GatherDimensionNumbers::default(), &[1, 1], false);
    |b, v| b.gather(v[0], v[2], &GatherDimensionNumbers { start_index_map: Dims::from_slice(&[0]), ..Default::default() }, &[1, 4], false);
    |b, v| b.fft(v[0], FftType::Fft, &[3]);
    |b, v| b.fft(v[0], FftType::Rfft, &[4]);
    |b, v| b.cholesky(v[0], true);
    |b, v| Ok(b.rng_bit_generator(v[2], RngAlgorithm::Philox, tensor(U32, &[2]))?.0);
    |b, v| Ok(b.top_k(v[0], 4)?.0);
    |b, v| Ok(b.custom_call("f", &[v[0]], &[], ApiVersion::TypedFfi, &BackendConfig::Opaque("x".into()), false)?[0]);
}

#[test]
fn region_values_do_not_escape() {
    let mut leaked = None;
    let message = refused(|b, v| {
        b.while_loop(
            &[v[2]],
            |b, _| b.constant(Pred, false),
            |_, a| {
                leaked = Some(a[0]);
                Ok(a.to_vec())
            },
        )?;
        b.negate(leaked.unwrap())
    });
    assert!(message.starts_with("negate: a value of type tensor<i32> is used outside"), "{message}");
}

#[test]
fn a_failed_region_leaves_the_builder_usable() {
    let mut b = Builder::new("after");
    let x = b.parameter(tensor(F32, &[2]));
    let zero = b.zero(F32).unwrap();
    let failed = b.reduce(&[x], &[zero], &[0], |_, _| Err(Error::body("the caller's own")));
    assert_eq!(failed.unwrap_err().to_string(), "the caller's own");
    let y = b.negate(x).unwrap();
    verify(&b.finish(&[y]).unwrap()).unwrap();
}

#[test]
fn a_foreign_value_is_refused() {
    let mut other = Builder::new("other");
    let values: Vec<Value> = (0..3).map(|_| other.parameter(tensor(F32, &[2]))).collect();
    let mut b = Builder::new("one");
    let x = b.parameter(tensor(F32, &[2]));
    assert!(matches!(b.add(x, values[2]), Err(Error::UnknownValue { op: "add", .. })));
    assert!(matches!(b.finish(&[values[2]]), Err(Error::UnknownValue { .. })));
}

#[test]
fn finish_reports_what_could_not_be_reported_earlier() {
    let finish = |prepare: fn(&mut Builder)| {
        let mut b = Builder::new("late");
        let x = b.parameter(tensor(F32, &[2]));
        let y = b.parameter(tensor(F32, &[3]));
        prepare(&mut b);
        b.finish(&[x, y]).map(|m| m.text().to_string()).map_err(|e| e.to_string())
    };
    let alias = |error: &str| Err(format!("alias of parameter {error}"));
    assert_eq!(finish(|b| b.alias(0, 2)), alias("0 to result 2: there are 2 results"));
    assert_eq!(finish(|b| b.alias(2, 0)), alias("2 to result 0: there are 2 parameters"));
    assert_eq!(
        finish(|b| b.alias(0, 1)),
        alias("0 to result 1: the types tensor<2xf32> and tensor<3xf32> differ")
    );
    let negative = finish(|b| {
        b.parameter(tensor(F32, &[-1]));
    });
    assert_eq!(negative, Err("tensor type tensor<-1xf32>: dimensions must not be negative".into()));
    let huge = finish(|b| {
        b.parameter(tensor(F32, &[1 << 40, 1 << 40]));
    });
    assert!(huge.unwrap_err().contains("exceeds 64 bits"));
}
