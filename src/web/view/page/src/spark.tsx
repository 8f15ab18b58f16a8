/** A small chart: values from left to right, the newest at the right end. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { prepare } from "./bars";
import { figure } from "./format";

interface Props {
  values: number[];
  /** Values that fit. */
  most: number;
  label: string;
  tone?: "error";
}

export function Spark({ values, most, label, tone }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const prepared = prepare(canvas.current!);
    if (!prepared) return;
    const [context, width, height] = prepared;
    const colour = getComputedStyle(canvas.current!).color;
    const highest = Math.max(1e-9, ...values);
    const step = width / (most - 1);
    const x = (at: number) => width - (values.length - 1 - at) * step;
    const y = (value: number) => height - 1.5 - (value / highest) * (height - 4);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    values.forEach((value, at) => (at === 0 ? context.moveTo(x(at), y(value)) : context.lineTo(x(at), y(value))));
    context.stroke();
    if (values.length > 1) {
      context.lineTo(width, height);
      context.lineTo(x(0), height);
      context.globalAlpha = 0.14;
      context.fill();
      context.globalAlpha = 1;
    }
  });
  const highest = Math.max(0, ...values);
  return <canvas ref={canvas} class={`spark ${tone ?? ""}`} role="img" aria-label={`${label}: ${figure(values.at(-1) ?? 0)}, at most ${figure(highest)}`} />;
}
