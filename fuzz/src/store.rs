//! What must hold for any bytes that a store may find: the check of the fuzz
//! target `store`, which `crates/store/tests/replay.rs` also runs over the
//! seeds.

use punctual_store::{
    Batch, Image, Log, LogConfig, Medium as _, Op, SimulatedDisk, Start, Store as _,
};

/// Reads the input as an operation, and as the first segment of a log.
pub fn store(data: &[u8]) {
    if let Ok(op) = Op::decode(data) {
        let mut again = Vec::new();
        op.encode(&mut again);
        assert_eq!(again, data, "written as it was read");
        let mut batch = Batch::new();
        batch.push(&op);
        let mut image = Image::default();
        image.apply(&batch);
        image.apply(&batch);
        image.operations(&mut |op| batch.push(&op));
    }
    segment(data);
}

/// No panic, and what was read can be added to and is read again.
fn segment(data: &[u8]) {
    let mut disk = SimulatedDisk::default();
    // On a disk in memory neither can fail.
    let made = disk.create(1, data.len() as u64);
    made.and_then(|()| disk.write(1, 0, data)).expect("room");
    let config = LogConfig {
        segment_bytes: 4096,
        ..LogConfig::default()
    };
    let Ok(mut log) = Log::open(disk, config, Start { seed: 1, wall: 0 }) else {
        return;
    };
    let mut group = Batch::new();
    group.push(&Op::Flow {
        key: "fuzz",
        value: data,
    });
    log.commit(&group).expect("room");
    let before = told(&mut log);
    let mut log =
        Log::open(log.into_medium(), config, Start { seed: 2, wall: 0 }).expect("its own segments");
    assert_eq!(told(&mut log), before);
}

fn told(log: &mut Log<SimulatedDisk>) -> Vec<String> {
    let mut told = Vec::new();
    log.recover(&mut |op| told.push(format!("{op:?}")))
        .expect("it can be read");
    told.sort_unstable();
    told
}
