/// Makes the examples in the documentation use the `tracer` of this workspace, wherever they are run, and no head that runs already.
fn use_built_executable() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), std::path::PathBuf::from);
        let executable = root.join(target).join(if cfg!(debug_assertions) { "debug" } else { "release" }).join("tracer");
        // SAFETY: the examples look at the environment through the standard library only, which has a lock for it.
        unsafe {
            std::env::set_var("TRACER_EXECUTABLE", executable);
            std::env::set_var("TRACER_TEMP_DIR", root.join("no-head-runs-here"));
        }
    });
}
