"""A FastAPI application. Nothing in it is about tracer or about tracing: see service.toml."""

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

app = FastAPI()
STOCK = {"lamp": 3, "chair": 4}


@app.get("/items/{name}")
def item(name: str) -> dict:
    """How many there are of a thing."""
    if name not in STOCK:
        raise HTTPException(404, f"there is no {name}")
    return {"name": name, "stock": STOCK[name]}


@app.get("/lines")
def lines(count: int = 3) -> StreamingResponse:
    """Numbers, each on a line, as they are asked for."""
    return StreamingResponse((f"{number}\n" for number in range(count)), media_type="text/plain")
