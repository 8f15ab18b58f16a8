pub fn plain() {}

tracer_sdk::export!(tasks = [plain]);

fn main() {}
