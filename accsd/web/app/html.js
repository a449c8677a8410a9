// What every part of the page is made of. Text stays text: nothing here can make markup of a string.
import { h, render } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { batch, computed, effect, signal, useComputed, useSignal } from "../vendor/signals.js";
import htm from "../vendor/htm.js";

const html = htm.bind(h);
export { batch, computed, effect, h, html, render, signal, useComputed, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState };
