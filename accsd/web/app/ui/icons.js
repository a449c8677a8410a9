// Signs of the rail and the top bar, drawn with one stroke each.
import { html } from "../html.js";

const PATHS = {
  overview: "M3 10.5 10 4l7 6.5M5 9.5V16h10V9.5",
  jobs: "M4 5h12M4 10h12M4 15h8",
  fleet: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.01M6 13.5h.01",
  services: "M10 3l6 3.5v7L10 17l-6-3.5v-7zM10 10l6-3.5M10 10v7M10 10L4 6.5",
  dead: "M10 3 18 16.5H2zM10 8v4M10 14.2h.01",
  schedules: "M10 3.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM10 6.5V10l2.5 2",
  triggers: "M11 3 5 11.5h4.5L9 17l6-8.5h-4.5z",
  workflows: "M4 4h4v4H4zM12 12h4v4h-4zM12 4h4v4h-4zM8 6h4M14 8v4",
  tools: "M13 3.5a4 4 0 0 0-3.6 5.6L3.5 15l1.5 1.5 5.9-5.9A4 4 0 0 0 16.2 6l-2.4 2.2-2-2z",
  system: "M10 7.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5zM10 3v2M10 15v2M3 10h2M15 10h2M5 5l1.5 1.5M13.5 13.5 15 15M5 15l1.5-1.5M13.5 6.5 15 5",
  search: "M9 4a5 5 0 1 1 0 10A5 5 0 0 1 9 4zM12.8 12.8 17 17",
  more: "M4 10h.01M10 10h.01M16 10h.01",
  me: "M10 4a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM4 17c.5-3 2.8-4.5 6-4.5s5.500 1.500 6 4.500",
  narrow: "M12 5 7 10l5 5", wide: "M8 5l5 5-5 5",
};

export const Icon = ({ of }) => html`<svg class="icon" viewBox="0 0 20 20" width="18" height="18" aria-hidden="true" focusable="false"><path d=${PATHS[of]} /></svg>`;
