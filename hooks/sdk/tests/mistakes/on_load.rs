#[tracer_sdk::on_load]
async fn ready(_path: String) {}

#[tracer_sdk::on_load]
fn answer() -> u8 {
    7
}

fn main() {}
