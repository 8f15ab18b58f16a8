//! The module `demo`, which is built into `tracer` so that there is something to submit.
//!
//! `tracer submit task` without a name runs [`my_function`]. It needs no library on disk, so it tells a cluster that
//! does not work from a library that does not load.

/// Returns 1.
#[tracer_sdk::task]
pub fn my_function() -> u32 {
    1
}

tracer_sdk::builtin_module! {
    /// The record of the module `demo`.
    pub fn module, tasks = [my_function]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_one_task() {
        // SAFETY: the record and all it points to live as long as the process.
        let (version, name) = unsafe {
            let module = &*module();
            assert_eq!((module.task_count, module.hook_count), (1, 0));
            (module.version.as_bytes(), (**module.tasks).name.as_bytes())
        };
        assert_eq!(version, env!("CARGO_PKG_VERSION").as_bytes());
        assert_eq!(name, b"my_function");
        assert_eq!(my_function(), 1);
    }
}
