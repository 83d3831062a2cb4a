import { defineConfig } from 'vite'

// The files have fixed names: the server sends them with tags of their contents.
export default defineConfig({
  base: './',
  build: {
    outDir: '../internal/dashboard/dist',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: 'dashboard/app.js',
        assetFileNames: 'dashboard/app[extname]',
      },
    },
  },
})
