module polymq/interop/mqtt

go 1.22

require github.com/eclipse/paho.golang v0.23.0
